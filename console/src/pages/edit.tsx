export function EditPage() { return null; }
export function CreatePage() { return null; }
