// What the reader has selected, stored in the address so that a link shows the same.
import { computed, effect, signal } from "@preact/signals";
import { content, type SiteMaps } from "./content";
import { answer, headsOf, right, sitesOf, source, unpack } from "./forward/adder";

export const model = content.model ? unpack(content.model) : null;
export const allHeads = model ? headsOf(model) : (content.examples[0]?.maps ?? []).flatMap((site) => site.heads.map((_, number) => `${site.site}.${number}`));
const most = model ? 10 ** model.digits - 1 : 999;
const usual = ["457", "968"].map((text) => text.slice(-(model?.digits ?? text.length)));
const fits = (text: string): boolean => /^\d+$/.test(text) && Number(text) <= most;

export const landed = location.hash.slice(1); // the address when the page was opened
// a page of comparisons alone has no model and no study to show, and one of a language model's length has none of heads
const compares = content.comparisons.length > 0, headless = !content.made.runs.length && !content.heads && !content.seeds.length && !content.lengths.length;
const far = content.languages.length > 0, alone = headless && compares && !far;
const tried = headless && far ? [] : ["try", "heads"];
export const SECTIONS = content.classroom ? ["mistakes", "submissions"] : ["answers", ...(alone ? [] : [...tried, ...(content.tries ? ["try-length"] : []), "length"]), ...(compares ? ["comparison"] : []), "made"];

/** The name of the precomputed answer with exactly these heads closed; null where there is none. */
function workedName(shut: ReadonlySet<string>): string | null {
  const sets: Record<string, string[] | undefined> = { "": [], alone: content.heads?.alone?.heads, together: content.heads?.together?.heads };
  const same = (name: string): boolean => {
    const heads = name in sets ? sets[name] : [name];
    return heads?.length === shut.size && heads.every((head) => shut.has(head));
  };
  return Object.keys(content.examples[0]?.answers ?? {}).find(same) ?? null;
}

/** Whether the page can show these heads closed: a model always can. */
export function canClose(shut: ReadonlySet<string>): boolean {
  return model != null || workedName(shut) != null;
}

function fromAddress(): { a: string; b: string; off: Set<string>; head: string | null; example: number } {
  const query = new URLSearchParams(location.hash.slice(1));
  const number = (name: string, usual: string): string => {
    const text = query.get(name) ?? usual;
    return fits(text) ? text : usual;
  };
  const known = (name: string): boolean => allHeads.includes(name);
  const head = query.get("head"), off = new Set((query.get("off") ?? "").split(",").filter(known));
  return {
    a: number("a", usual[0]!),
    b: number("b", usual[1]!),
    off: canClose(off) ? off : new Set(),
    head: head && known(head) ? head : null,
    example: Math.min(Number(number("example", "0")), Math.max(0, content.examples.length - 1)),
  };
}

const first = fromAddress();
export const a = signal(first.a);
export const b = signal(first.b);
export const closed = signal<ReadonlySet<string>>(first.off);
export const chosen = signal<string | null>(first.head);
export const example = signal(first.example); // of the precomputed ones, where there is no model inside
export const step = signal(0); // the selected token of the answer
export const token = signal<{ keys: string; place: number } | null>(null); // the highlighted token, and the tokens of its axis

export const valid = computed(() => !model || [a.value, b.value].every(fits));
export const largest = most;
export { fits };

/** A problem as it is shown: the answer, its probabilities, the right answer, and where every head looks. */
export interface Shown {
  said: string[];
  wanted: string[];
  likely: [string, number][][]; // by token of the answer: the likeliest words
  maps: { site: string; queries: string[]; keys: string[]; heads: Float32Array[] }[];
}

function computedHere(): Shown {
  const operands = [Number(a.value), Number(b.value)] as const, words = model!.vocabulary;
  const tokens = source(model!, ...operands), found = answer(model!, tokens, closed.value);
  const read = tokens.map((each) => words[each]!), written = ["›", ...found.digits.slice(0, -1).map((each) => words[each]!)];
  return {
    said: found.digits.map((each) => words[each]!),
    wanted: right(model!, ...operands).map((each) => words[each]!),
    likely: found.probabilities.map((chances) => chances.map((chance, word) => [words[word]!, chance] as [string, number]).sort((p, q) => q[1] - p[1])),
    maps: sitesOf(model!).map((site) => {
      const own = site.startsWith("encoder") ? read : written;
      return { site, queries: own, keys: site.endsWith("cross") ? read : own, heads: found.maps[site]! };
    }),
  };
}

const flat = (site: SiteMaps) => ({ ...site, heads: site.heads.map((weights) => Float32Array.from(weights.flat())) });
const unfolded = content.examples.map((each) => each.maps.map(flat));

function workedOut(): Shown {
  const found = content.examples[example.value]!, answered = found.answers[workedName(closed.value) ?? ""] ?? found.answers[""]!;
  return {
    said: answered.said,
    wanted: found.wanted,
    likely: answered.said.map((word, place) => [[word, answered.chances[place]!]]),
    maps: unfolded[example.value]!,
  };
}

export const shown = computed<Shown | null>(() => {
  if (model) return valid.value ? computedHere() : null;
  return content.examples.length ? workedOut() : null;
});

/** Closes these heads, or opens them where all of them are closed; without a model, one head at a time. */
export function toggle(names: string[]): void {
  const shut = names.every((name) => closed.value.has(name));
  const now = new Set(model || shut ? closed.value : []);
  for (const name of names) shut ? now.delete(name) : now.add(name);
  closed.value = canClose(now) ? now : new Set();
}

effect(() => {
  example.value;
  step.value = 0;
});

let opening = SECTIONS.includes(landed); // the address then is a section's, until something is chosen
effect(() => {
  if (content.classroom) return;
  const query = new URLSearchParams(model ? { a: a.value, b: b.value } : { example: String(example.value) });
  if (closed.value.size) query.set("off", [...closed.value].join(","));
  if (chosen.value) query.set("head", chosen.value);
  if (opening) opening = false;
  else if (location.protocol !== "about:") history.replaceState(null, "", "#" + query.toString().replaceAll("%2C", ",")); // a notebook's frame has no address
});
addEventListener("hashchange", () => {
  if (SECTIONS.includes(location.hash.slice(1))) return; // the browser goes there by itself
  const now = fromAddress();
  [a.value, b.value, closed.value, chosen.value, example.value] = [now.a, now.b, now.off, now.head, now.example];
});
