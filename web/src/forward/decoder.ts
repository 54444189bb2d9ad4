// The forward pass of a decoder that writes a sum digit by digit, the least significant first. Digits of equal weight
// share a position index (coupled), so that sums of any length need no index that training never met.
import { embedTokens, runBlock, type Cache, type Maps, type Order } from "./attention";
import { largestOf, linear, normalise } from "./operations";
import { biasOf } from "./positions";
import { unpackWeights, type Packed, type Weights } from "./weights";

export interface PackedDecoder {
  name: string;
  d_model: number;
  heads: number;
  layers: number;
  start: number;
  plus: number;
  positions: string;
  trained: [number, number]; // digits
  weights: Record<string, Packed>;
}

export interface Decoder extends Omit<PackedDecoder, "weights"> {
  weights: Weights;
}

export interface Written {
  digits: number[]; // the least significant first
  logits: Float32Array[]; // by digit
  looks: Float32Array[]; // by digit: how much each token was attended to, the mean of all heads of the first layer
}

const NONE: ReadonlySet<string> = new Set();

export function unpackDecoder(packed: PackedDecoder): Decoder {
  return { ...packed, weights: unpackWeights(packed.weights) };
}

/** Runs new tokens through the model and returns their logits; the cache holds the tokens before them. */
function run(model: Decoder, tokens: number[], segment: number, index: number[], cache: Cache, maps: Maps): Float32Array {
  const w = model.weights, width = model.d_model, x = embedTokens(model, tokens);
  const added = w["segments"]?.subarray(segment * width, (segment + 1) * width);
  for (let i = 0; added && i < x.length; i++) x[i]! += added[i % width]!;
  const order: Order = { queries: index.slice(-tokens.length), keys: index, bias: biasOf(model.positions, model.heads, w["positions.table"]), causal: true };
  for (let layer = 0; layer < model.layers; layer++) runBlock(model, `blocks.${layer}`, `decoder.${layer}`, x, order, null, { closed: NONE, maps, cache });
  const read = normalise(x, tokens.length, w["norm.weight"]!, w["norm.bias"]!);
  return linear(read, tokens.length, w["unembed.weight"]!, w["unembed.bias"]!);
}

/** Writes the sum of two numbers of equally many digits, most significant first, by greedy decoding. */
export function writeSum(model: Decoder, a: number[], b: number[]): Written {
  const columns = a.map((_, place) => a.length - place), index = [...columns, 0, ...columns]; // 1 for the ones, 2 for the tens
  const cache: Cache = {}, found: Written = { digits: [], logits: [], looks: [] };
  run(model, [...a, model.plus, ...b], 0, index, cache, {});
  let token = model.start;
  for (let step = 0; step <= a.length; step++) {
    const maps: Maps = {};
    index.push(step + 1); // an answer token has the index of the column that is predicted after it
    const logits = run(model, [token], 1, index, cache, maps), heads = maps["decoder.0.self"]!;
    token = largestOf(logits);
    found.digits.push(token);
    found.logits.push(logits);
    found.looks.push(Float32Array.from(index, (_, k) => heads.reduce((sum, head) => sum + head[k]!, 0) / heads.length));
  }
  return found;
}
