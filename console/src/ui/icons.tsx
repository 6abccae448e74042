/** The icons, drawn on a 16-pixel grid. */
const PATHS = {
  home: "M2.5 7.5 8 2.8l5.5 4.7M4 6.5V13h3V9.5h2V13h3V6.5",
  pipelines: "M2.5 4h4l3 8h4M2.5 12h4M10 4h3.5",
  graph: "M2.5 3h3.5v3H2.5zM2.5 10h3.5v3H2.5zM10 6.5h3.5v3H10zM6 4.5h1.5L9 8h1M6 11.5h1.5L9 8",
  runs: "M8 2.5a5.5 5.5 0 1 1-5.2 3.7M2.5 2.8v3.4h3.4M8 5.2V8l2 1.4",
  runners: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  connections: "M2.8 4.2c0-1 2.3-1.7 5.2-1.7s5.2.7 5.2 1.7-2.3 1.7-5.2 1.7-5.2-.7-5.2-1.7zM2.8 4.2v7.6c0 1 2.3 1.7 5.2 1.7s5.2-.7 5.2-1.7V4.2M2.8 8c0 1 2.3 1.7 5.2 1.7s5.2-.7 5.2-1.7",
  feeds: "M2.5 5c1.8-2 3.7-2 5.5 0s3.7 2 5.5 0M2.5 8.5c1.8-2 3.7-2 5.5 0s3.7 2 5.5 0M2.5 12c1.8-2 3.7-2 5.5 0s3.7 2 5.5 0",
  letters: "M2.5 4h11v8.5h-11zM2.8 4.5 8 8.8l5.2-4.3",
  audit: "M4 2.5h6l2.5 2.5v8.5H4zM6 7h4.5M6 9.5h4.5M6 4.7h2",
  settings: "M2.5 5h5.5M11.5 5h2M2.5 11h2M8 11h5.5M9.7 3.2a1.8 1.8 0 1 0 0 3.6 1.8 1.8 0 0 0 0-3.6zM6.2 9.2a1.8 1.8 0 1 0 0 3.6 1.8 1.8 0 0 0 0-3.6z",
  search: "M7 2.8a4.2 4.2 0 1 0 0 8.4 4.2 4.2 0 0 0 0-8.4zM10.2 10.2 13.5 13.5",
  play: "M5 3.2v9.6l7.6-4.8z",
  pause: "M5.2 3.5v9M10.8 3.5v9",
  stop: "M4 4h8v8H4z",
  plus: "M8 3v10M3 8h10",
  edit: "M3 13l.6-2.8L10.8 3a1.3 1.3 0 0 1 1.9 0l.3.3a1.3 1.3 0 0 1 0 1.9L5.8 12.4z",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  chevron: "M6 3.5 10.5 8 6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
  arrow: "M2.5 8h11M9.5 4l4 4-4 4",
  close: "M4 4l8 8M12 4l-8 8",
  check: "M3 8.5l3.2 3.2L13 4.8",
  warn: "M8 2.5 14 13H2zM8 6.5v3M8 11.3h.01",
  copy: "M5.5 5.5h7v7h-7zM10.5 3.5h-7v7",
  sun: "M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6zM8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5z",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  trash: "M3 4.5h10M6 4.5V3h4v1.5M4.3 4.5l.6 8.5h6.2l.6-8.5",
  undo: "M5.5 3 2.5 6l3 3M2.5 6h6.8a3.7 3.7 0 0 1 0 7.4H6",
  download: "M8 2.8v7M4.8 6.8 8 10l3.2-3.2M3 13h10",
  bell: "M4.2 11V7.3a3.8 3.8 0 0 1 7.6 0V11l1.2 1.2H3zM6.8 14h2.4",
  scale: "M8 2.8v10.4M5 13.2h6M3 4.8h10M3 4.8 1.4 9.2h3.2zM13 4.8l-1.6 4.4h3.2z",
  clock: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM8 5v3.2l2.2 1.4",
  star: "M8 2.5l1.7 3.5 3.8.5-2.8 2.7.7 3.8L8 11.2 4.6 13l.7-3.8L2.5 6.5l3.8-.5z",
  help: "M6 6a2 2 0 1 1 3 1.7c-.6.4-1 .8-1 1.6M8 12h.01",
  tag: "M2.5 2.5h5l6 6-5 5-6-6zM5.5 5.5h.01",
  filter: "M2.5 3.5h11L9.5 8.3v4.2l-3-1.5V8.3z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill={name === "play" || name === "stop" ? "currentColor" : "none"}
      stroke="currentColor"
      strokeWidth={name === "more" ? 2.2 : 1.4}
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      className="shrink-0"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Logo() {
  return (
    <svg width="20" height="20" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="var(--accent-solid)" />
      <path d="M7 9h18M9.5 9l5 14h3l5-14" fill="none" stroke="#fff" strokeWidth="2.8" strokeLinecap="round" strokeLinejoin="round" />
    </svg>
  );
}
