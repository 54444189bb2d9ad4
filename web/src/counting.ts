// Counts with a worker how many of a few hundred fresh sums are right with the open heads.
import { effect, signal } from "@preact/signals";
import { content } from "./content";
import { dice } from "./random";
import { closed, largest } from "./state";

declare const WORKER: string; // its code, inserted by the build

export const SUMS = 300;
export const counted = signal<{ done: number; wrong: number; of: number } | null>(null);

export function startWorker(): Worker {
  return new Worker(URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" })));
}

/** The same sums for every reader. */
export function freshSums(count: number, seed: number): [number, number][] {
  const draw = dice(seed);
  return Array.from({ length: count }, () => [draw(largest + 1), draw(largest + 1)]);
}

if (content.model) {
  const worker = startWorker();
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
