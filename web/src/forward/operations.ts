// The operations of every model in the page: the same computations as in PyTorch, in plain loops.
// Axes of every array: token, then feature. Weights are [out, in], as PyTorch keeps them.

/** x · weightᵀ + bias, for every token. */
export function linear(x: Float32Array, tokens: number, weight: Float32Array, bias?: Float32Array): Float32Array {
  const width = x.length / tokens, even = width - (width % 4);
  const out = bias ? bias.length : weight.length / width;
  const y = new Float32Array(tokens * out);
  for (let o = 0; o < out; o++) {
    const row = o * width;
    const base = bias ? bias[o]! : 0;
    for (let t = 0; t < tokens; t++) {
      const start = t * width;
      let first = 0, second = 0, third = 0, fourth = 0; // four sums: one alone would wait for each of its additions
      for (let i = 0; i < even; i += 4) {
        first += x[start + i]! * weight[row + i]!;
        second += x[start + i + 1]! * weight[row + i + 1]!;
        third += x[start + i + 2]! * weight[row + i + 2]!;
        fourth += x[start + i + 3]! * weight[row + i + 3]!;
      }
      for (let i = even; i < width; i++) first += x[start + i]! * weight[row + i]!;
      y[t * out + o] = first + second + third + fourth + base;
    }
  }
  return y;
}

/** Layer norm, for every token. */
export function normalise(x: Float32Array, tokens: number, weight: Float32Array, bias: Float32Array): Float32Array {
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

/** Adds y to x in place. */
export function add(x: Float32Array, y: Float32Array): void {
  for (let i = 0; i < x.length; i++) x[i]! += y[i]!;
}

export function softmax(logits: Float32Array): number[] {
  const most = Math.max(...logits);
  const powers = Array.from(logits, (each) => Math.exp(each - most));
  const total = powers.reduce((sum, each) => sum + each, 0);
  return powers.map((each) => each / total);
}

export function largestOf(logits: Float32Array): number {
  let best = 0;
  for (let token = 1; token < logits.length; token++) if (logits[token]! > logits[best]!) best = token;
  return best;
}
