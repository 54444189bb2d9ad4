// Counts with a worker how many of a few hundred fresh sums are right with the open heads.
import { effect, signal } from "@preact/signals";
import { content } from "./content";
import { closed, largest } from "./state";

declare const WORKER: string; // its code, inserted by the build

export const SUMS = 300;
export const counted = signal<{ done: number; wrong: number; of: number } | null>(null);

/** The same sums for every reader: a small generator with a fixed seed (mulberry32). */
export function freshSums(count: number, seed: number): [number, number][] {
  let state = seed;
  const draw = (): number => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * (largest + 1));
  };
  return Array.from({ length: count }, () => [draw(), draw()]);
}

if (content.model) {
  const worker = new Worker(URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" })));
  worker.postMessage({ model: content.model });
  let id = 0;
  worker.onmessage = ({ data }) => {
    if (data.id === id) counted.value = data;
  };
  effect(() => {
    counted.value = { done: 0, wrong: 0, of: SUMS };
    worker.postMessage({ id: ++id, closed: [...closed.value], sums: freshSums(SUMS, 1) });
  });
}
