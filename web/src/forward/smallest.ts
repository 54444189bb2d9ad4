// The forward pass of the smallest adder: six numbers, a stream of width one, and heads that average what they see.

/** The trained numbers, and what was proved of them. */
export interface PackedSmallest {
  name: string;
  shift: number;
  own: number;
  right: number;
  into: number;
  out: number;
  scale: number;
  contexts: number;
  margin: number;
  bound: number;
}

/** What the model computes to write one digit. */
export interface Step {
  column: [number, number]; // the digits that the first head sees
  before: [number, number, number]; // those that the second head sees; the last of them was just written
  own: number; // their averages
  right: number;
  stream: number; // after attention
  bend: number; // the unit, between −1 and 1
  bent: number; // the stream after the unit
  scaled: number; // what is compared with the points of the digits
  digit: number;
  logits: number[];
}

const f32 = Math.fround;

/** Writes the sum of two numbers of equally many digits, most significant first; the first step is that of the ones. */
export function writeSmallest(model: PackedSmallest, a: number[], b: number[]): Step[] {
  const [first, second] = [a, b].map((each) => [0, ...each.slice().reverse(), 0]) as [number[], number[]];
  const point = (digit: number): number => f32(digit + model.shift);
  const steps: Step[] = [];
  let written = 0; // the answer begins with a given 0 in the column of zeros
  for (let at = 1; at < first.length; at++) {
    const column: [number, number] = [first[at]!, second[at]!];
    const before: [number, number, number] = [first[at - 1]!, second[at - 1]!, written];
    const own = f32(f32(point(column[0]) + point(column[1])) / 2);
    const right = f32(f32(f32(point(before[0]) + point(before[1])) + point(written)) / 3);
    const stream = f32(point(written) + f32(f32(model.own * own) + f32(model.right * right)));
    const bend = f32(Math.tanh(f32(model.into * stream)));
    const bent = f32(stream + f32(model.out * bend));
    const scaled = f32(model.scale * bent);
    const logits = Array.from({ length: 10 }, (_, digit) => -f32(f32(scaled - point(digit)) ** 2));
    written = logits.indexOf(Math.max(...logits));
    steps.push({ column, before, own, right, stream, bend, bent, scaled, digit: written, logits });
  }
  return steps;
}
