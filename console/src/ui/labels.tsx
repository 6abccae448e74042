/** Labels of a pipeline, to look at. */
import { Tag } from "./basics";
import { labelTexts } from "./label-words";

export function Labels({ labels }: { labels: Record<string, string> }) {
  const texts = labelTexts(labels);
  if (texts.length === 0) return null;
  return (
    <span className="inline-flex flex-wrap gap-1">
      {texts.map((text) => (
        <Tag key={text}>{text}</Tag>
      ))}
    </span>
  );
}
