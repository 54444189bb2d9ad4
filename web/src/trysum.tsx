// The certified adder: a sum of any length, written digit by digit, with what each digit was read from.
import type { Signal } from "@preact/signals";
import { column, first, isNumber, MOST_DIGITS, second, sum } from "./tries";
import { walk } from "./trylength";

function randomDigits(count: number): string {
  return Array.from({ length: count }, (_, place) => Math.floor(Math.random() * (place ? 10 : 9)) + (place ? 0 : 1)).join("");
}

function random(): void {
  const digits = 1 + Math.floor(Math.random() * MOST_DIGITS);
  [first.value, second.value] = [randomDigits(digits), randomDigits(digits)];
}

/** A carry from the ones through all digits. */
function carry(): void {
  [first.value, second.value] = ["9".repeat(MOST_DIGITS), "1"];
}

function Field({ of: which, label }: { of: Signal<string>; label: string }) {
  const fits = isNumber(which.value);
  return <input aria-label={label} inputMode="numeric" maxLength={MOST_DIGITS} value={which.value} class={fits ? "" : "wrong"} aria-invalid={!fits} onInput={(event) => (which.value = event.currentTarget.value.trim())} />;
}

/** The sum as written on paper; under each token how much the chosen digit attends to it. */
function Columns({ now }: { now: NonNullable<typeof sum.value> }) {
  const digits = now.a.length, chosen = Math.min(column.value, digits), looks = now.looks[chosen]!;
  const said = now.digits.slice().reverse(), shade = (share: number | undefined) => ({ "--look": share ?? 0 });
  const operand = (text: string, from: number) => [...text].map((digit, place) => <span key={place} style={shade(looks[from + place])}>{digit}</span>);
  return (
    <div class="scroll">
      <div class="columns" style={{ "--columns": digits + 2 }} role="group" aria-label="the sum, written digit by digit">
        <span /><span />{operand(now.a, 0)}
        <span style={shade(looks[digits])}>+</span><span />{operand(now.b, digits + 1)}
        <span>=</span>
        <div class="written" onKeyDown={(event) => walk(event, digits - chosen, digits + 1, (place) => (column.value = digits - place))}>
          {said.map((digit, place) => {
            // a written digit is read by the next column, as input number step + 1; the start token is input 0
            const step = digits - place, good = String(digit) === now.right[place];
            return (
              <button key={place} class={good ? "right" : "wrong"} style={shade(step + 1 <= chosen ? looks[2 * digits + 2 + step] : 0)} tabIndex={step === chosen ? 0 : -1} aria-pressed={step === chosen}
                aria-label={`digit ${step + 1} from the right: ${digit}, ${good ? "right" : `wrong, it is ${now.right[place]}`}`} onClick={() => (column.value = step)}>{digit < 10 ? digit : "?"}</button>
            );
          })}
        </div>
      </div>
    </div>
  );
}

export function TrySum() {
  const now = sum.value, wrong = now ? now.digits.slice().reverse().filter((digit, place) => String(digit) !== now.right[place]).length : 0;
  return (
    <section class="try-sum" aria-label="the certified adder">
      <h3>The certified adder</h3>
      <p>It was trained on sums of at most 8 digits and is proved right at every length. Add numbers of up to {MOST_DIGITS} digits.</p>
      <div class="addends"><Field of={first} label="first long number" /> <span>+</span> <Field of={second} label="second long number" />
        <button id="random-sum" onClick={random}>random</button> <button id="carry-sum" onClick={carry}>carry through every digit</button></div>
      {now ? (
        <>
          <Columns now={now} />
          <p class={wrong ? "wrong verdict" : "right verdict"} id="sum-verdict" role="status">{wrong ? `✗ ${wrong} of ${now.digits.length} digits wrong: the sum is ${BigInt(now.right)}` : `✓ all ${now.digits.length} digits right`}</p>
          <p class="note">It writes the ones first. Press a digit of the sum to see what it was read from: only its own column and the one before, however long the numbers are. So finitely many cases cover every sum, and <code>headway certify pretrained:certified-adder</code> checks them all (<code>pretrained:certified-sorter</code> likewise). The proofs hold for PyTorch in float32; this page computes with the same weights.</p>
        </>
      ) : <p class="wrong" role="alert">Enter two whole numbers of at most {MOST_DIGITS} digits.</p>}
    </section>
  );
}
