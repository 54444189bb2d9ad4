// The smallest adder, whole: every one of its numbers with what it does, and every step to a digit of the reader's sum.
import { writeSmallest, type PackedSmallest, type Step } from "./forward/smallest";
import { Figure, Table } from "./save";
import { column, smallest, sum } from "./tries";
import { walk } from "./trylength";

const show = (value: number): string => value.toFixed(3).replace("-", "−");

/** What each number does, in the order of the forward pass. */
const NUMBERS: { key: "shift" | "own" | "right" | "into" | "out" | "scale"; name: string; does: string }[] = [
  { key: "shift", name: "shift", does: "Digit d is the point d + shift of a line: 0 to 9 lie evenly on both sides of 0." },
  { key: "own", name: "own column", does: "Weighs the average of the two digits in the column that is answered." },
  { key: "right", name: "column to its right", does: "Weighs the average of the two digits there and of the digit just written below them. With the written digit itself, which stays in the stream, that makes a′ + b′ − c′, up to a factor: 9 or 10 if that column carried, 0 or −1 if not. Nothing has to decide whether it carried." },
  { key: "into", name: "into the unit", does: "Makes a step of the unit's slope: on one side are sums up to 9, on the other those from 10." },
  { key: "out", name: "out of the unit", does: "Is the height of the step: with the scale it adds about 5 to sums up to 9 and takes about 5 from the others. That is the sum modulo ten." },
  { key: "scale", name: "scale", does: "Turns the stream back into the unit of the digits. The nearest digit is the answer." },
];

function Numbers({ model }: { model: PackedSmallest }) {
  return (
    <div class="smallest-numbers">
      <Table label="numbers of the smallest adder">
        <thead><tr><th scope="col">number</th><th scope="col">value</th><th scope="col">what it does</th></tr></thead>
        <tbody>{NUMBERS.map(({ key, name, does }) => <tr key={key}><th scope="row">{name}</th><td class="number" data-number={key}>{show(model[key])}</td><td>{does}</td></tr>)}</tbody>
      </Table>
    </div>
  );
}

/** The line of digits, with the place that the stream has reached. */
function Line({ model, step }: { model: PackedSmallest; step: Step }) {
  const at = (value: number): number => 20 + (580 * (value - model.shift + 0.5)) / 10;
  return (
    <svg class="digit-line" viewBox="0 0 620 62" role="img" aria-label={`the stream ends at ${show(step.scaled - model.shift)} on the line of digits; the nearest digit is ${step.digit}`}>
      <line x1={at(model.shift - 0.5)} x2={at(model.shift + 9.5)} y1="30" y2="30" />
      {Array.from({ length: 10 }, (_, digit) => <g key={digit} class={digit === step.digit ? "chosen" : ""}><circle cx={at(digit + model.shift)} cy="30" r="4" /><text x={at(digit + model.shift)} y="54">{digit}</text></g>)}
      <path d={`M ${at(step.scaled)} 26 l -7 -14 h 14 z`} />
    </svg>
  );
}

function Steps({ model, step }: { model: PackedSmallest; step: Step }) {
  const [a, b] = step.column, [c, d, w] = step.before;
  const rows: [string, string, number][] = [
    ["first head", `average of the points of ${a} and ${b}`, step.own],
    ["second head", `average of the points of ${c}, ${d} and the written ${w}`, step.right],
    ["stream", `point of ${w} ${show(model.own)} · first ${show(model.right)} · second`, step.stream],
    ["unit", `tanh(${show(model.into)} · stream)`, step.bend],
    ["stream", `stream + ${show(model.out)} · unit`, step.bent],
    ["scaled", `${show(model.scale)} · stream; as a digit ${show(step.scaled - model.shift)}`, step.scaled],
  ];
  return (
    <div class="smallest-steps">
      <Table label="steps of the smallest adder">
        <tbody>{rows.map(([name, how, value], place) => <tr key={place}><th scope="row">{name}</th><td>{how}</td><td class="number">{show(value)}</td></tr>)}</tbody>
      </Table>
    </div>
  );
}

export function Smallest() {
  const model = smallest, now = sum.value;
  if (!model || !now) return null;
  const steps = writeSmallest(model, [...now.a].map(Number), [...now.b].map(Number)), count = steps.length;
  const chosen = Math.min(column.value, count - 1), wrong = steps.filter((step, place) => String(step.digit) !== now.right[count - 1 - place]).length;
  return (
    <section class="smallest" aria-label="the smallest adder">
      <h3>The smallest adder, whole</h3>
      <p>A transformer of one layer and width 1 whose {NUMBERS.length} trained numbers are all here. It is proved right at every length, too: {model.contexts.toLocaleString("en")} contexts, none wrong, the smallest lead {model.margin.toFixed(3)}, rounding in float32 at most {model.bound.toPrecision(1)}.</p>
      <Numbers model={model} />
      <h4>Your sum, digit by digit</h4>
      <div class="smallest-sum" role="group" aria-label="the sum by the smallest adder" onKeyDown={(event) => walk(event, count - 1 - chosen, count, (place) => (column.value = count - 1 - place))}>
        {steps.map((_, place) => {
          const at = count - 1 - place, good = String(steps[at]!.digit) === now.right[place];
          return <button key={at} class={good ? "right" : "wrong"} tabIndex={at === chosen ? 0 : -1} aria-pressed={at === chosen} aria-label={`digit ${at + 1} from the right: ${steps[at]!.digit}`} onClick={() => (column.value = at)}>{steps[at]!.digit}</button>;
        })}
      </div>
      <p class={wrong ? "wrong verdict" : "right verdict"} id="smallest-verdict" role="status">{wrong ? `✗ ${wrong} of ${count} digits wrong` : `✓ all ${count} digits right`}</p>
      <Steps model={model} step={steps[chosen]!} />
      <Figure label="the stream on the line of digits"><Line model={model} step={steps[chosen]!} /></Figure>
      <p class="note">What is given, not learned: which column each token is in, what each head sees (there are no queries and keys), zeros around the numbers, and that digits are evenly spaced in order. <code>pretrained:smallest-adder-table</code> learns the ten points, too, and is proved with 15 numbers: <code>docs/smallest-adder.md</code>.</p>
    </section>
  );
}
