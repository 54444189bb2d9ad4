// The forward pass of a Headway encoder-decoder: the same computation as in PyTorch, in plain loops.
// Axes of every array: token, then feature. Weights are [out, in], as PyTorch keeps them.

export interface Packed {
  shape: number[];
  data: string; // base64 of half floats, least significant byte first
}

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

export type Site = string; // encoder.0.self, decoder.1.cross
export type Closed = ReadonlySet<string>; // heads, such as decoder.1.cross.2

export interface Maps {
  [site: Site]: Float32Array[]; // by head: query × key
}

export interface Model extends Omit<PackedModel, "weights"> {
  weights: Record<string, Float32Array>;
}

export function halfFloats(base64: string): Float32Array {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const halves = new Uint16Array(bytes.buffer);
  const floats = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) {
    const half = halves[i]!;
    const exponent = (half >> 10) & 31;
    const fraction = half & 1023;
    const sign = half >> 15 ? -1 : 1;
    if (exponent === 0) floats[i] = sign * fraction * 2 ** -24;
    else if (exponent === 31) floats[i] = fraction ? NaN : sign * Infinity;
    else floats[i] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return floats;
}

export function unpack(packed: PackedModel): Model {
  const weights: Record<string, Float32Array> = {};
  for (const [name, each] of Object.entries(packed.weights)) weights[name] = halfFloats(each.data);
  return { ...packed, weights };
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

/** x · weightᵀ + bias, for every token. */
function linear(x: Float32Array, tokens: number, weight: Float32Array, bias?: Float32Array): Float32Array {
  const width = x.length / tokens;
  const out = bias ? bias.length : weight.length / width;
  const y = new Float32Array(tokens * out);
  for (let o = 0; o < out; o++) {
    const row = o * width;
    const base = bias ? bias[o]! : 0;
    for (let t = 0; t < tokens; t++) {
      const start = t * width;
      let sum = 0;
      for (let i = 0; i < width; i++) sum += x[start + i]! * weight[row + i]!;
      y[t * out + o] = sum + base;
    }
  }
  return y;
}

function normalised(x: Float32Array, tokens: number, weight: Float32Array, bias: Float32Array): Float32Array {
  const width = x.length / tokens;
  const y = new Float32Array(x.length);
  for (let t = 0; t < tokens; t++) {
    let mean = 0;
    for (let i = 0; i < width; i++) mean += x[t * width + i]!;
    mean /= width;
    let variance = 0;
    for (let i = 0; i < width; i++) variance += (x[t * width + i]! - mean) ** 2;
    const scale = 1 / Math.sqrt(variance / width + 1e-5);
    for (let i = 0; i < width; i++) y[t * width + i] = (x[t * width + i]! - mean) * scale * weight[i]! + bias[i]!;
  }
  return y;
}

function attention(
  model: Model, name: string, site: Site, x: Float32Array, queries: number, context: Float32Array, keys: number,
  causal: boolean, closed: Closed, maps: Maps | null,
): Float32Array {
  const width = model.d_model, heads = model.heads, dim = width / heads, w = model.weights;
  const query = linear(x, queries, w[`${name}.query`]!);
  const both = w[`${name}.key_value`]!;
  const key = linear(context, keys, both.subarray(0, width * width));
  const value = linear(context, keys, both.subarray(width * width));
  const itself = context === x; // cross-attention has no position signal
  if (model.positions === "rope" && itself) [query, key].forEach((each) => rotate(each, queries, dim));
  const steep = (head: number): number => (model.positions === "alibi" && itself ? slope(head, heads) : 0);
  const z = new Float32Array(queries * width);
  const shown: Float32Array[] = [];
  for (let head = 0; head < heads; head++) {
    const map = new Float32Array(queries * keys), falling = steep(head);
    for (let q = 0; q < queries; q++) {
      const seen = causal ? q + 1 : keys;
      let most = -Infinity, total = 0;
      for (let k = 0; k < seen; k++) {
        let score = 0;
        for (let i = 0; i < dim; i++) score += query[q * width + head * dim + i]! * key[k * width + head * dim + i]!;
        map[q * keys + k] = score / Math.sqrt(dim) - falling * Math.abs(q - k);
        most = Math.max(most, map[q * keys + k]!);
      }
      for (let k = 0; k < seen; k++) total += map[q * keys + k] = Math.exp(map[q * keys + k]! - most);
      for (let k = 0; k < seen; k++) {
        const share = (map[q * keys + k] = map[q * keys + k]! / total);
        if (closed.has(`${site}.${head}`)) continue;
        for (let i = 0; i < dim; i++) z[q * width + head * dim + i]! += share * value[k * width + head * dim + i]!;
      }
    }
    shown.push(map);
  }
  if (maps) maps[site] = shown;
  return linear(z, queries, w[`${name}.out.weight`]!, w[`${name}.out.bias`]!);
}

function add(x: Float32Array, y: Float32Array): void {
  for (let i = 0; i < x.length; i++) x[i]! += y[i]!;
}

function embedded(model: Model, tokens: number[], table: string): Float32Array {
  const width = model.d_model, x = new Float32Array(tokens.length * width);
  const rows = model.weights["tokens.weight"]!, places = model.weights[table];
  tokens.forEach((token, t) => {
    for (let i = 0; i < width; i++) x[t * width + i] = rows[token * width + i]! + (places ? places[t * width + i]! : wave(model, t, i));
  });
  return x;
}

/** The value that sinusoidal positions add: sine and cosine interleaved. */
function wave(model: Model, place: number, feature: number): number {
  if (model.positions !== "sinusoidal") return 0;
  const angle = place * Math.exp((feature - (feature % 2)) * (-Math.log(10_000) / model.d_model));
  return feature % 2 ? Math.cos(angle) : Math.sin(angle);
}

/** Rotates every pair of numbers by an angle that grows with the position (rope). */
function rotate(x: Float32Array, tokens: number, dim: number): void {
  const width = x.length / tokens;
  for (let t = 0; t < tokens; t++)
    for (let i = 0; i < width; i += 2) {
      const angle = t * 10_000 ** (-(i % dim) / dim), [sine, cosine] = [Math.sin(angle), Math.cos(angle)];
      const [first, second] = [x[t * width + i]!, x[t * width + i + 1]!];
      x[t * width + i] = first * cosine - second * sine;
      x[t * width + i + 1] = second * cosine + first * sine;
    }
}

/** The rate at which each head's scores fall with distance (alibi). */
function slope(head: number, heads: number): number {
  const even = 2 ** Math.floor(Math.log2(heads));
  return head < even ? 2 ** ((-8 * (head + 1)) / even) : 2 ** ((-4 * (2 * (head - even) + 1)) / even);
}

function block(
  model: Model, stack: string, layer: number, x: Float32Array, tokens: number, memory: Float32Array | null, sources: number,
  closed: Closed, maps: Maps | null,
): void {
  const w = model.weights, here = `${stack}.${layer}`;
  for (const kind of memory ? ["self", "cross"] : ["self"]) {
    const read = normalised(x, tokens, w[`${here}.norms.${kind}.weight`]!, w[`${here}.norms.${kind}.bias`]!);
    const across = kind === "cross";
    const causal = stack === "decoder" && !across;
    const output = attention(model, `${here}.attentions.${kind}`, `${here}.${kind}`, read, tokens,
      across ? memory! : read, across ? sources : tokens, causal, closed, maps);
    add(x, output);
  }
  const read = normalised(x, tokens, w[`${here}.norms.feed.weight`]!, w[`${here}.norms.feed.bias`]!);
  const inner = linear(read, tokens, w[`${here}.feed.into.weight`]!, w[`${here}.feed.into.bias`]!);
  for (let i = 0; i < inner.length; i++) if (inner[i]! < 0) inner[i] = 0;
  add(x, linear(inner, tokens, w[`${here}.feed.out.weight`]!, w[`${here}.feed.out.bias`]!));
}

export function encode(model: Model, source: number[], closed: Closed, maps: Maps | null = null): Float32Array {
  const x = embedded(model, source, "source_positions.table");
  for (let layer = 0; layer < model.layers; layer++) block(model, "encoder", layer, x, source.length, null, 0, closed, maps);
  return normalised(x, source.length, model.weights["encoder_norm.weight"]!, model.weights["encoder_norm.bias"]!);
}

/** The logits after each written token, the start token first: token × vocabulary. */
export function decode(
  model: Model, memory: Float32Array, sources: number, written: number[], closed: Closed, maps: Maps | null = null,
): Float32Array {
  const x = embedded(model, written, "answer_positions.table");
  for (let layer = 0; layer < model.decoder_layers; layer++)
    block(model, "decoder", layer, x, written.length, memory, sources, closed, maps);
  const read = normalised(x, written.length, model.weights["decoder_norm.weight"]!, model.weights["decoder_norm.bias"]!);
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
    const last = logits.subarray(step * words);
    let best = 0;
    for (let token = 1; token < words; token++) if (last[token]! > last[best]!) best = token;
    digits.push(best);
    if (step < length - 1) written.push(best);
  }
  const probabilities = digits.map((_, step) => softmax(logits.subarray(step * words, (step + 1) * words)));
  return { digits, probabilities, logits, maps };
}

function softmax(logits: Float32Array): number[] {
  const most = Math.max(...logits);
  const powers = Array.from(logits, (each) => Math.exp(each - most));
  const total = powers.reduce((sum, each) => sum + each, 0);
  return powers.map((each) => each / total);
}

/** The tokens of a + b. */
export function source(model: Pick<Model, "digits" | "vocabulary">, a: number, b: number): number[] {
  const digitsOf = (number: number): number[] => [...String(number).padStart(model.digits, "0")].map(Number);
  return [...digitsOf(a), model.vocabulary.indexOf("+"), ...digitsOf(b)];
}

export function right(model: Pick<Model, "digits">, a: number, b: number): number[] {
  return [...String(a + b).padStart(model.digits + 1, "0")].map(Number);
}
