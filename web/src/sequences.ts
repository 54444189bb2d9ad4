// Sequences for the classifiers of sortedness, and how the worker and the page agree on what was asked.
import { dice } from "./random";

export const LONGEST = 128;
export const SHORTEST = 2;
export const ROUNDS = 4; // pairs of sequences at each length, in the strip of all lengths
export const LENGTHS = Array.from({ length: LONGEST - SHORTEST + 1 }, (_, i) => SHORTEST + i);

/** What a worker reports of one length: for each model whether it was right on the sorted and on the swapped sequence. */
export interface Answers {
  round: number;
  length: number;
  right: [boolean, boolean][];
}

/** The first place whose element is smaller than the one before it; −1 in a sorted sequence. */
export function firstDescent(sequence: number[]): number {
  return sequence.findIndex((each, place) => place > 0 && each < sequence[place - 1]!);
}

/** Places whose element differs from the next one. */
export function unequalNeighbours(sequence: number[]): number[] {
  return sequence.map((_, place) => place).filter((place) => place + 1 < sequence.length && sequence[place] !== sequence[place + 1]);
}

export function swapped(sequence: number[], one: number, other: number): number[] {
  const copy = sequence.slice();
  [copy[one], copy[other]] = [sequence[other]!, sequence[one]!];
  return copy;
}

/** A sorted sequence of random elements, not all equal, and the same with two unequal neighbours swapped. */
export function drawPair(length: number, values: number, seed: number): [number[], number[]] {
  const draw = dice(seed);
  let ordered: number[] = [];
  do ordered = Array.from({ length }, () => draw(values)).sort((p, q) => p - q);
  while (ordered[0] === ordered.at(-1));
  const places = unequalNeighbours(ordered), place = places[draw(places.length)]!;
  return [ordered, swapped(ordered, place, place + 1)];
}

/** The pair of a round at a length: the same for every model and every reader. */
export function stripPair(length: number, values: number, round: number): [number[], number[]] {
  return drawPair(length, values, 1_000 * length + round);
}
