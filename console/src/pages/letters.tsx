export function LettersPage() { return null; }
