// What the reader has chosen, kept in the address so that a link shows the same.
import { computed, effect, signal } from "@preact/signals";
import { content } from "./content";
import { answer, headsOf, right, source, unpack, type Answered } from "./model";

export const model = content.model ? unpack(content.model) : null;
export const allHeads = model ? headsOf(model) : [];
const most = model ? 10 ** model.digits - 1 : 999;

function fromAddress(): { a: string; b: string; off: Set<string>; head: string | null } {
  const asked = new URLSearchParams(location.hash.slice(1));
  const number = (name: string, usual: string): string => {
    const text = asked.get(name) ?? usual;
    return /^\d+$/.test(text) && Number(text) <= most ? text : usual;
  };
  const known = (name: string): boolean => allHeads.includes(name);
  const head = asked.get("head");
  return {
    a: number("a", "457"),
    b: number("b", "968"),
    off: new Set((asked.get("off") ?? "").split(",").filter(known)),
    head: head && known(head) ? head : null,
  };
}

const first = fromAddress();
export const a = signal(first.a);
export const b = signal(first.b);
export const closed = signal<ReadonlySet<string>>(first.off);
export const chosen = signal<string | null>(first.head);
export const step = signal(0); // the answer's digit that is looked at
export const token = signal<number | null>(null); // the token of the source that is followed

export const valid = computed(() => [a.value, b.value].every((text) => /^\d+$/.test(text) && Number(text) <= most));
export const largest = most;

export const answered = computed<Answered | null>(() => {
  if (!model || !valid.value) return null;
  return answer(model, source(model, Number(a.value), Number(b.value)), closed.value);
});
export const truth = computed(() => (model && valid.value ? right(model, Number(a.value), Number(b.value)) : []));

export function toggle(names: string[]): void {
  const now = new Set(closed.value);
  const shut = names.every((name) => now.has(name));
  for (const name of names) shut ? now.delete(name) : now.add(name);
  closed.value = now;
}

effect(() => {
  const asked = new URLSearchParams({ a: a.value, b: b.value });
  if (closed.value.size) asked.set("off", [...closed.value].join(","));
  if (chosen.value) asked.set("head", chosen.value);
  history.replaceState(null, "", "#" + asked.toString().replaceAll("%2C", ","));
});
addEventListener("hashchange", () => {
  const now = fromAddress();
  [a.value, b.value, closed.value, chosen.value] = [now.a, now.b, now.off, now.head];
});
