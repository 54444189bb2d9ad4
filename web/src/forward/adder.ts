// The forward pass of an encoder-decoder that writes the sum of two numbers, the most significant digit first.
import { count, embedTokens, runBlock, type Closed, type Maps, type Order, type Shape, type Site } from "./attention";
import { largestOf, linear, normalise, softmax } from "./operations";
import { biasOf, embedPositions } from "./positions";
import { unpackWeights, type Packed, type Weights } from "./weights";

export interface PackedModel {
  d_model: number;
  heads: number;
  layers: number;
  decoder_layers: number;
  start: number;
  positions: string; // learned, sinusoidal, none, rope or alibi
  vocabulary: string[];
  digits: number;
  weights: Record<string, Packed>;
}

export interface Model extends Omit<PackedModel, "weights"> {
  weights: Weights;
}

export function unpack(packed: PackedModel): Model {
  return { ...packed, weights: unpackWeights(packed.weights) };
}

export function sitesOf(model: Pick<Model, "layers" | "decoder_layers">): Site[] {
  const sites: Site[] = [];
  for (let layer = 0; layer < model.layers; layer++) sites.push(`encoder.${layer}.self`);
  for (let layer = 0; layer < model.decoder_layers; layer++) sites.push(`decoder.${layer}.self`, `decoder.${layer}.cross`);
  return sites;
}

export function headsOf(model: Pick<Model, "layers" | "decoder_layers" | "heads">): string[] {
  return sitesOf(model).flatMap((site) => Array.from({ length: model.heads }, (_, head) => `${site}.${head}`));
}

function embedded(model: Model, tokens: number[], table: string): Float32Array {
  const x = embedTokens(model, tokens);
  embedPositions(x, count(tokens.length), model.positions, model.weights[table]);
  return x;
}

function orderOf(model: Shape, tokens: number, causal: boolean): Order {
  const index = count(tokens);
  return { queries: index, keys: index, bias: biasOf(model.positions, model.heads), causal };
}

export function encode(model: Model, source: number[], closed: Closed, maps?: Maps): Float32Array {
  const x = embedded(model, source, "source_positions.table"), order = orderOf(model, source.length, false);
  for (let layer = 0; layer < model.layers; layer++) runBlock(model, `encoder.${layer}`, `encoder.${layer}`, x, order, null, { closed, maps });
  return normalise(x, source.length, model.weights["encoder_norm.weight"]!, model.weights["encoder_norm.bias"]!);
}

/** The logits after each written token, the start token first: token × vocabulary. */
export function decode(model: Model, memory: Float32Array, sources: number, written: number[], closed: Closed, maps?: Maps): Float32Array {
  const x = embedded(model, written, "answer_positions.table"), order = orderOf(model, written.length, true);
  const across: Order = { queries: order.queries, keys: count(sources), bias: null, causal: false }; // without a position signal
  for (let layer = 0; layer < model.decoder_layers; layer++) runBlock(model, `decoder.${layer}`, `decoder.${layer}`, x, order, across, { closed, maps, memory });
  const read = normalise(x, written.length, model.weights["decoder_norm.weight"]!, model.weights["decoder_norm.bias"]!);
  return linear(read, written.length, model.weights["unembed.weight"]!, model.weights["unembed.bias"]!);
}

export interface Answered {
  digits: number[];
  probabilities: number[][]; // by answer digit, over the vocabulary
  logits: Float32Array;
  maps: Maps;
}

/** A sum, answered token by token. */
export function answer(model: Model, source: number[], closed: Closed): Answered {
  const maps: Maps = {}, words = model.vocabulary.length, length = model.digits + 1;
  const memory = encode(model, source, closed, maps);
  const written = [model.start], digits: number[] = [];
  let logits = new Float32Array();
  for (let step = 0; step < length; step++) {
    logits = decode(model, memory, source.length, written, closed, maps) as Float32Array<ArrayBuffer>;
    const best = largestOf(logits.subarray(step * words));
    digits.push(best);
    if (step < length - 1) written.push(best);
  }
  const probabilities = digits.map((_, step) => softmax(logits.subarray(step * words, (step + 1) * words)));
  return { digits, probabilities, logits, maps };
}

/** The tokens of a + b. */
export function source(model: Pick<Model, "digits" | "vocabulary">, a: number, b: number): number[] {
  const digitsOf = (number: number): number[] => [...String(number).padStart(model.digits, "0")].map(Number);
  return [...digitsOf(a), model.vocabulary.indexOf("+"), ...digitsOf(b)];
}

export function right(model: Pick<Model, "digits">, a: number, b: number): number[] {
  return [...String(a + b).padStart(model.digits + 1, "0")].map(Number);
}
