// Counts right answers over fresh sums in a worker, so that the page stays responsive.
import { answer, right, source, unpack, type Model, type PackedModel } from "./model";

export interface Ask {
  id: number;
  closed: string[];
  sums: [number, number][];
}

let model: Model | null = null;
let latest = 0;

self.onmessage = async ({ data }: MessageEvent<{ model: PackedModel } | Ask>) => {
  if ("model" in data) {
    model = unpack(data.model);
    return;
  }
  if (!model) return;
  latest = data.id;
  const closed = new Set(data.closed);
  let wrong = 0;
  for (let n = 0; n < data.sums.length; n++) {
    const [a, b] = data.sums[n]!;
    const digits = answer(model, source(model, a, b), closed).digits;
    wrong += Number(right(model, a, b).some((digit, place) => digit !== digits[place]));
    if (n % 10 === 9 || n === data.sums.length - 1) {
      self.postMessage({ id: data.id, done: n + 1, wrong, of: data.sums.length });
      await new Promise((later) => setTimeout(later));
      if (latest !== data.id) return; // another set of heads was requested
    }
  }
};
