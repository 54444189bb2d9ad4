// The forward pass of a classifier: an encoder that reads a sequence, pools its tokens and predicts one of two classes.
import { count, embedTokens, runBlock, type Maps, type Order } from "./attention";
import { linear, normalise } from "./operations";
import { biasOf, embedPositions } from "./positions";
import { unpackWeights, type Packed, type Weights } from "./weights";

export interface PackedClassifier {
  name: string;
  d_model: number;
  heads: number;
  layers: number;
  positions: string;
  pooling: string; // mean, max or violation
  values: number; // the elements are 0 to values − 1
  trained: [number, number]; // lengths
  rows: number | null; // of learned positions: no longer sequence has a signal
  weights: Record<string, Packed>;
}

export interface Classifier extends Omit<PackedClassifier, "weights"> {
  weights: Weights;
}

export interface Classified {
  logits: [number, number]; // not sorted, sorted
  maps: Maps;
}

const NONE: ReadonlySet<string> = new Set();

export function unpackClassifier(packed: PackedClassifier): Classifier {
  return { ...packed, weights: unpackWeights(packed.weights) };
}

export function classify(model: Classifier, sequence: number[]): Classified {
  const w = model.weights, tokens = sequence.length, index = count(tokens), maps: Maps = {};
  const x = embedTokens(model, sequence), table = w["positions.table"];
  embedPositions(x, index, model.positions, model.positions === "learned" ? table : undefined);
  const order: Order = { queries: index, keys: index, bias: biasOf(model.positions, model.heads, table), causal: false };
  for (let layer = 0; layer < model.layers; layer++) runBlock(model, `blocks.${layer}`, `encoder.${layer}`, x, order, null, { closed: NONE, maps });
  return { logits: pool(model, normalise(x, tokens, w["norm.weight"]!, w["norm.bias"]!), tokens), maps };
}

/** Pools over the tokens and reads out the logits. Under `violation` each token has a logit, and the largest decides. */
function pool(model: Classifier, x: Float32Array, tokens: number): [number, number] {
  const [weight, bias] = [model.weights["head.weight"]!, model.weights["head.bias"]!], width = model.d_model;
  if (model.pooling === "violation") return [linear(x, tokens, weight, bias).reduce((most, each) => Math.max(most, each), -Infinity), 0];
  const pooled = new Float32Array(width);
  for (let i = 0; i < width; i++) {
    let sum = 0, most = -Infinity;
    for (let t = 0; t < tokens; t++) {
      sum += x[t * width + i]!;
      most = Math.max(most, x[t * width + i]!);
    }
    pooled[i] = model.pooling === "mean" ? sum / tokens : most;
  }
  const [no, yes] = linear(pooled, 1, weight, bias);
  return [no!, yes!];
}
