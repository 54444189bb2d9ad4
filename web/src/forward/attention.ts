// Attention, computed in this one place for every model of the page, and the block around it.
import { add, linear, normalise } from "./operations";
import { rotate, type Bias } from "./positions";
import type { Weights } from "./weights";

export type Site = string; // encoder.0.self, decoder.1.cross
export type Closed = ReadonlySet<string>; // heads, such as decoder.1.cross.2

export interface Maps {
  [site: Site]: Float32Array[]; // by head: query × key
}

/** What attention and blocks need to know of a model. */
export interface Shape {
  d_model: number;
  heads: number;
  positions: string;
  weights: Weights;
}

/** How order enters an attention: the indices of queries and keys, the bias, and whether a query sees only keys up to itself. */
export interface Order {
  queries: number[];
  keys: number[];
  bias: Bias | null;
  causal: boolean;
}

/** Keys and values of earlier tokens, by site, for decoding token by token. */
export type Cache = Record<Site, { key: Float32Array; value: Float32Array }>;

/** The inputs of a pass through a stack, apart from its tokens. */
export interface Pass {
  closed: Closed;
  maps?: Maps; // filled with the map of every head
  memory?: Float32Array; // cross-attention reads it
  cache?: Cache;
}

function joined(before: Float32Array, after: Float32Array): Float32Array {
  const both = new Float32Array(before.length + after.length);
  both.set(before);
  both.set(after, before.length);
  return both;
}

function keysValues(model: Shape, name: string, site: Site, context: Float32Array, order: Order, cache?: Cache): { key: Float32Array; value: Float32Array } {
  const width = model.d_model, both = model.weights[`${name}.key_value`]!, past = cache?.[site];
  const index = past ? order.keys.slice(past.key.length / width) : order.keys; // of the keys that are new
  let key = linear(context, index.length, both.subarray(0, width * width));
  let value = linear(context, index.length, both.subarray(width * width));
  if (model.positions === "rope" && !site.endsWith("cross")) rotate(key, index, width / model.heads);
  if (past) [key, value] = [joined(past.key, key), joined(past.value, value)];
  if (cache) cache[site] = { key, value };
  return { key, value };
}

/** The weights of one query over the keys it sees, into its row of the map. */
function weigh(row: Float32Array, head: number, query: Float32Array, key: Float32Array, width: number, order: Order, place: number, seen: number): void {
  const dim = query.length, scale = 1 / Math.sqrt(dim);
  let most = -Infinity, total = 0;
  for (let k = 0; k < seen; k++) {
    const added = order.bias ? order.bias(head, order.keys[k]! - place) : 0;
    if (added === -Infinity) {
      row[k] = added;
      continue;
    }
    let score = 0;
    const start = k * width + head * dim;
    for (let i = 0; i < dim; i++) score += query[i]! * key[start + i]!;
    row[k] = score * scale + added;
    if (row[k]! > most) most = row[k]!;
  }
  for (let k = 0; k < seen; k++) total += row[k] = row[k] === -Infinity ? 0 : Math.exp(row[k]! - most);
  for (let k = 0; k < seen; k++) row[k]! /= total;
}

/** The output of an attention. With a cache, `context` holds only the new tokens; the queries are the last of the keys. */
function attend(model: Shape, name: string, site: Site, x: Float32Array, context: Float32Array, order: Order, pass: Pass): Float32Array {
  const { d_model: width, heads, weights: w } = model, dim = width / heads, queries = order.queries.length, keys = order.keys.length;
  const query = linear(x, queries, w[`${name}.query`]!);
  if (model.positions === "rope" && !site.endsWith("cross")) rotate(query, order.queries, dim);
  const { key, value } = keysValues(model, name, site, context, order, pass.cache);
  const z = new Float32Array(queries * width), shown: Float32Array[] = [];
  for (let head = 0; head < heads; head++) {
    const map = new Float32Array(queries * keys), closed = pass.closed.has(`${site}.${head}`);
    for (let q = 0; q < queries; q++) {
      const seen = order.causal ? keys - queries + q + 1 : keys, start = q * width + head * dim;
      const row = map.subarray(q * keys, (q + 1) * keys);
      weigh(row, head, query.subarray(start, start + dim), key, width, order, order.queries[q]!, seen);
      for (let k = 0; k < seen && !closed; k++) {
        const share = row[k]!;
        if (share === 0) continue;
        for (let i = 0; i < dim; i++) z[start + i]! += share * value[k * width + head * dim + i]!;
      }
    }
    shown.push(map);
  }
  if (pass.maps) pass.maps[site] = shown;
  return linear(z, queries, w[`${name}.out.weight`]!, w[`${name}.out.bias`]!);
}

/** Self-attention, cross-attention where the pass has a memory, and the feed-forward block, each added to x in place. */
export function runBlock(model: Shape, name: string, stack: string, x: Float32Array, order: Order, across: Order | null, pass: Pass): void {
  const w = model.weights, tokens = order.queries.length;
  const read = (kind: string): Float32Array => normalise(x, tokens, w[`${name}.norms.${kind}.weight`]!, w[`${name}.norms.${kind}.bias`]!);
  const own = read("self");
  add(x, attend(model, `${name}.attentions.self`, `${stack}.self`, own, own, order, pass));
  if (across) add(x, attend(model, `${name}.attentions.cross`, `${stack}.cross`, read("cross"), pass.memory!, across, pass));
  const inner = linear(read("feed"), tokens, w[`${name}.feed.into.weight`]!, w[`${name}.feed.into.bias`]!);
  for (let i = 0; i < inner.length; i++) if (inner[i]! < 0) inner[i] = 0;
  add(x, linear(inner, tokens, w[`${name}.feed.out.weight`]!, w[`${name}.feed.out.bias`]!));
}

/** The embeddings of these tokens. */
export function embedTokens(model: Shape, tokens: number[]): Float32Array {
  const width = model.d_model, x = new Float32Array(tokens.length * width), rows = model.weights["tokens.weight"]!;
  tokens.forEach((token, t) => x.set(rows.subarray(token * width, (token + 1) * width), t * width));
  return x;
}

export function count(tokens: number, from = 0): number[] {
  return Array.from({ length: tokens }, (_, t) => from + t);
}
