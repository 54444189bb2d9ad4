// Evaluates in the background, so that the page stays responsive: right answers over fresh sums, and the answers of the
// classifiers at every length.
import { answer, right, source, unpack, type Model, type PackedModel } from "./forward/adder";
import { classify, unpackClassifier, type PackedClassifier } from "./forward/classifier";
import { LENGTHS, ROUNDS, stripPair, type Answers } from "./sequences";

export interface Ask {
  id: number;
  closed: string[];
  sums: [number, number][];
}

let model: Model | null = null;
let latest = 0;

async function countSums({ id, closed, sums }: Ask, adder: Model): Promise<void> {
  latest = id;
  const shut = new Set(closed);
  let wrong = 0;
  for (let n = 0; n < sums.length; n++) {
    const [a, b] = sums[n]!;
    const digits = answer(adder, source(adder, a, b), shut).digits;
    wrong += Number(right(adder, a, b).some((digit, place) => digit !== digits[place]));
    if (n % 10 === 9 || n === sums.length - 1) {
      self.postMessage({ id, done: n + 1, wrong, of: sums.length });
      await new Promise((later) => setTimeout(later));
      if (latest !== id) return; // another set of heads was requested
    }
  }
}

/** Answers a sorted and a swapped sequence of every length, and then again with other elements. */
function answerEveryLength(packed: PackedClassifier[]): void {
  const models = packed.map(unpackClassifier);
  for (let round = 0; round < ROUNDS; round++)
    for (const length of LENGTHS) {
      const answers: Answers = { round, length, right: [] };
      for (const each of models) {
        const margins = each.rows != null && length > each.rows ? [NaN, NaN] : stripPair(length, each.values, round).map((sequence) => {
          const [no, yes] = classify(each, sequence).logits;
          return yes - no;
        });
        answers.right.push([margins[0]! > 0, margins[1]! <= 0]); // a tie is "not sorted", as the first of equal logits wins
      }
      self.postMessage(answers);
    }
}

self.onmessage = ({ data }: MessageEvent<{ model: PackedModel } | { classifiers: PackedClassifier[] } | Ask>) => {
  if ("model" in data) model = unpack(data.model);
  else if ("classifiers" in data) answerEveryLength(data.classifiers);
  else if (model) void countSums(data, model);
};
