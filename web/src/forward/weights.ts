// Weights as the page contains them: base64 of half floats or of floats, least significant byte first.

export interface Packed {
  shape: number[];
  data: string;
  single?: boolean; // floats of 4 bytes; half floats otherwise
}

export type Weights = Record<string, Float32Array>;

function bytesOf(base64: string): ArrayBuffer {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)).buffer;
}

export function halfFloats(base64: string): Float32Array {
  const halves = new Uint16Array(bytesOf(base64));
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

export function unpackWeights(packed: Record<string, Packed>): Weights {
  const weights: Weights = {};
  for (const [name, each] of Object.entries(packed)) weights[name] = each.single ? new Float32Array(bytesOf(each.data)) : halfFloats(each.data);
  return weights;
}
