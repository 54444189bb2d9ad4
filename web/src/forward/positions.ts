// The position encodings that the page computes. As in Python, an encoding acts in one of three places: it adds to the
// embeddings (learned, sinusoidal), rotates queries and keys (rope), or adds a bias to the scores (alibi, window).
import type { Weights } from "./weights";

const WINDOW = /^window\+behind=(\d+)\+ahead=(\d+)$/;

/** What an attention adds to its scores: a bias by head and distance (key index minus query index); −∞ hides the key. */
export type Bias = (head: number, distance: number) => number;

/** Adds the signal of each index to the embeddings; `table` holds the rows of learned positions. */
export function embedPositions(x: Float32Array, index: number[], positions: string, table?: Float32Array): void {
  const width = x.length / index.length;
  index.forEach((place, t) => {
    for (let i = 0; i < width; i++) {
      if (table) x[t * width + i]! += table[place * width + i]!;
      else if (positions === "sinusoidal") x[t * width + i]! += Math.fround(wave(place, i, width));
    }
  });
}

/** Sines and cosines, interleaved. */
function wave(place: number, feature: number, width: number): number {
  const angle = place * Math.exp((feature - (feature % 2)) * (-Math.log(10_000) / width));
  return feature % 2 ? Math.cos(angle) : Math.sin(angle);
}

/** Rotates every pair of numbers by an angle that grows with the index (rope), in place. */
export function rotate(x: Float32Array, index: number[], dim: number): void {
  const width = x.length / index.length;
  index.forEach((place, t) => {
    for (let i = 0; i < width; i += 2) {
      const angle = place * 10_000 ** (-(i % dim) / dim), [sine, cosine] = [Math.sin(angle), Math.cos(angle)];
      const [first, second] = [x[t * width + i]!, x[t * width + i + 1]!];
      x[t * width + i] = first * cosine - second * sine;
      x[t * width + i + 1] = second * cosine + first * sine;
    }
  });
}

/** The rate at which a head's scores fall with distance (alibi). */
function slope(head: number, heads: number): number {
  const even = 2 ** Math.floor(Math.log2(heads));
  return head < even ? 2 ** ((-8 * (head + 1)) / even) : 2 ** ((-4 * (2 * (head - even) + 1)) / even);
}

/** The bias of an encoding on the scores; null where it has none. `table` is the window's: distance × head. */
export function biasOf(positions: string, heads: number, table?: Weights[string]): Bias | null {
  if (positions === "alibi") {
    const slopes = Array.from({ length: heads }, (_, head) => slope(head, heads));
    return (head, distance) => -slopes[head]! * Math.abs(distance);
  }
  const found = WINDOW.exec(positions);
  if (!found) return null;
  const [behind, ahead] = [Number(found[1]), Number(found[2])];
  return (head, distance) => (distance < -behind || distance > ahead ? -Infinity : table![(distance + behind) * heads + head]!);
}
