/** What stands where pipelines would, as long as there are none. */
import { Link } from "@tanstack/react-router";
import { useMay } from "../api/queries";
import { t } from "../words/language";
import { Empty } from "./basics";

export function NoPipelines() {
  const mayOperate = useMay("operator");
  return (
    <Empty icon="pipelines" title={t("No pipelines yet")}>
      <p>{t("A pipeline keeps a mart up to date from one SQL query.")}</p>
      {mayOperate && (
        <p className="mt-3">
          <Link to="/new" className="text-accent underline">
            {t("Create the first one")}
          </Link>
        </p>
      )}
    </Empty>
  );
}
