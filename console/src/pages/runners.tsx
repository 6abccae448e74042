export function RunnersPage() { return null; }
