// What the reader has chosen in "Try a length": a length, the swaps, a model; and what the models answer to it.
import { computed, signal } from "@preact/signals";
import { content } from "./content";
import { startWorker } from "./counting";
import { classify, unpackClassifier, type Classifier, type PackedClassifier } from "./forward/classifier";
import type { Maps } from "./forward/attention";
import { unpackDecoder, writeSum, type Decoder, type Written } from "./forward/decoder";
import { dice } from "./random";
import { firstDescent, LONGEST, SHORTEST, swapped, unequalNeighbours, type Answers } from "./sequences";

const tries = content.tries ?? null;
export const smallest = tries?.smallest ?? null;
export const packed: (PackedClassifier & { run: string })[] = tries ? [...tries.classifiers, tries.sorter] : [];

let unpacked: Classifier[] | null = null;
let adder: Decoder | null = null;

/** The classifiers, unpacked when they are first needed. */
export function classifiers(): Classifier[] {
  return (unpacked ??= packed.map(unpackClassifier));
}

export function certifiedAdder(): Decoder {
  return (adder ??= unpackDecoder(tries!.adder));
}

/** A classifier's name as people say it. */
export function titleOf(name: string): string {
  return name === "none" ? "no positions" : name.includes("certified") ? name : `${name} positions`;
}

export const length = signal(16);
export const elements = signal(1); // the seed of the elements
export const swaps = signal<[number, number][]>([]);
export const picked = signal<number | null>(null); // the first of two elements to swap
export const focused = signal(0); // the element that the keyboard is on
export const looking = signal(Math.max(0, packed.length - 1)); // the model whose maps are shown
export const head = signal(0); // the enlarged one of its heads

/** The elements in order, with the swaps that fit into this length. */
export const sequence = computed(() => {
  const draw = dice(elements.value), drawn = Array.from({ length: LONGEST }, () => draw(packed[0]?.values ?? 100));
  const ordered = drawn.slice(0, length.value).sort((p, q) => p - q);
  const fitting = swaps.value.filter((each) => Math.max(...each) < length.value);
  return fitting.reduce((now, [one, other]) => swapped(now, one, other), ordered);
});

export const isSorted = computed(() => firstDescent(sequence.value) < 0);

export interface Opinion {
  sorted: boolean;
  margin: number; // the difference of the logits
  chance: number; // the probability of the answer
  maps: Maps;
}

/** The answer of each classifier; null where it has no position signal for so many elements. */
export const opinions = computed<(Opinion | null)[]>(() =>
  classifiers().map((model) => {
    if (model.rows != null && length.value > model.rows) return null;
    const { logits: [no, yes], maps } = classify(model, sequence.value), margin = Math.abs(yes - no);
    return { sorted: yes > no, margin, chance: 1 / (1 + Math.exp(-margin)), maps };
  }),
);

export function chooseLength(wanted: number): void {
  if (!Number.isFinite(wanted)) return;
  length.value = Math.min(LONGEST, Math.max(SHORTEST, Math.round(wanted)));
  focused.value = Math.min(focused.value, length.value - 1);
  picked.value = null;
}

/** Picks an element; with another one picked before, swaps the two. */
export function pick(place: number): void {
  focused.value = place;
  if (picked.value == null) picked.value = place;
  else {
    if (picked.value !== place) swaps.value = [...swaps.value, [picked.value, place]];
    picked.value = null;
  }
}

export function swapNeighbours(): void {
  const places = unequalNeighbours(sequence.value), place = places[Math.floor(Math.random() * places.length)];
  if (place != null) swaps.value = [...swaps.value, [place, place + 1]];
  picked.value = null;
}

export function sortAgain(): void {
  [swaps.value, picked.value] = [[], null];
}

/** By model, kind (sorted, swapped) and length: how many sequences were asked and how many answers were wrong. */
export const strip = signal<{ asked: Record<number, number>; wrong: Record<number, number>[][] }>({ asked: {}, wrong: [] });
let running = false;

/** Begins to answer at every length, in a worker; the counts come in as they are found. */
export function startStrip(): void {
  if (running || !packed.length) return;
  running = true;
  const worker = startWorker(), waiting: Answers[] = [];
  worker.onmessage = ({ data }: MessageEvent<Answers>) => {
    if (waiting.push(data) === 1) requestAnimationFrame(() => record(waiting.splice(0))); // one drawing for all that came
  };
  worker.postMessage({ classifiers: packed });
}

function record(answers: Answers[]): void {
  const asked = { ...strip.value.asked };
  const wrong = packed.map((_, model) => [0, 1].map((kind) => ({ ...strip.value.wrong[model]?.[kind] })));
  for (const { length: at, right } of answers) {
    asked[at] = (asked[at] ?? 0) + 1;
    right.forEach((both, model) => both.forEach((each, kind) => (wrong[model]![kind]![at] = (wrong[model]![kind]![at] ?? 0) + Number(!each))));
  }
  strip.value = { asked, wrong };
}

// the certified adder
export const MOST_DIGITS = 40;
export const first = signal("98765432109876543210");
export const second = signal("1234567890123456790");
export const column = signal(0); // of the sum, counted from the ones

export function isNumber(text: string): boolean {
  return /^\d+$/.test(text) && text.length <= MOST_DIGITS;
}

export const sum = computed<(Written & { a: string; b: string; right: string }) | null>(() => {
  if (!isNumber(first.value) || !isNumber(second.value)) return null;
  const digits = Math.max(first.value.length, second.value.length);
  const [a, b] = [first.value.padStart(digits, "0"), second.value.padStart(digits, "0")];
  const right = (BigInt(a) + BigInt(b)).toString().padStart(digits + 1, "0");
  return { a, b, right, ...writeSum(certifiedAdder(), [...a].map(Number), [...b].map(Number)) };
});
