/** One way to talk to the API: the token goes along, errors come back as problem documents. */
import { currentLanguage, t } from "../words/language";
import { retold } from "../words/told";
import type { FieldProblem } from "./types";

const BASE = "/api/v1";
const TOKEN_KEY = "vitrina.token";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly fields: FieldProblem[] = [],
    readonly requestId: string | null = null,
  ) {
    super(message);
  }
}

export const token = {
  read: (): string | null => localStorage.getItem(TOKEN_KEY),
  keep: (value: string): void => localStorage.setItem(TOKEN_KEY, value),
  forget: (): void => localStorage.removeItem(TOKEN_KEY),
};

export function headers(extra: Record<string, string> = {}): Record<string, string> {
  const secret = token.read();
  return secret ? { ...extra, Authorization: `Bearer ${secret}` } : extra;
}

export async function request<Answer>(
  method: string,
  path: string,
  { body, ifMatch, signal }: { body?: unknown; ifMatch?: number; signal?: AbortSignal } = {},
): Promise<Answer> {
  const sent = headers(ifMatch === undefined ? {} : { "If-Match": `"${ifMatch}"` });
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(BASE + path, {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", t("The server does not answer."));
  }
  if (response.status === 204) return undefined as Answer;
  const text = await response.text();
  const answer = inOurWords(text);
  if (!response.ok) throw problem(response.status, answer);
  return answer as Answer;
}

/** Its sentences in the language of the page; there are none in most answers. */
function inOurWords(text: string): unknown {
  const answer = parse(text);
  return currentLanguage() !== "en" && text.includes('_said":') ? retold(answer) : answer;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function problem(status: number, answer: unknown): ApiError {
  const said = (answer ?? {}) as { code?: string; detail?: string; errors?: FieldProblem[]; request_id?: string };
  return new ApiError(status, said.code ?? "error", said.detail ?? `HTTP ${status}`, said.errors, said.request_id ?? null);
}

export const get = <Answer>(path: string, signal?: AbortSignal): Promise<Answer> =>
  request<Answer>("GET", path, { signal });
export const post = <Answer>(path: string, body?: unknown): Promise<Answer> => request<Answer>("POST", path, { body });

/** Saves what the API answers as a file of the person's. */
export async function download(path: string, name: string): Promise<void> {
  const response = await fetch(BASE + path, { headers: headers() });
  if (!response.ok) throw problem(response.status, inOurWords(await response.text()));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** The same request for a terminal; the token stays out of it. */
export function asCurl(method: string, path: string, options: { body?: unknown; auth: boolean }): string {
  const parts = [`curl -X ${method} '${location.origin}${BASE}${path}'`];
  if (options.auth) parts.push(`-H "Authorization: Bearer $VITRINA_TOKEN"`);
  if (options.body !== undefined) {
    parts.push("-H 'Content-Type: application/json'");
    parts.push(`-d '${JSON.stringify(options.body).replaceAll("'", "'\\''")}'`);
  }
  return parts.join(" \\\n  ");
}
