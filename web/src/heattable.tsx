// Accuracy by length and depth as a table with coloured cells: a reader who cannot see the colour reads the number.
import type { RecallRow } from "./content";
import { colour } from "./maps";
import { Table } from "./save";
import { theme } from "./theme";

/** How light a colour is, as WCAG measures it. */
function luminance(rgb: number[]): number {
  const [red, green, blue] = rgb.map((each) => (each / 255 <= 0.03928 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!;
}

/** The colour of a cell, and black or white on it, whichever has more contrast. */
function look(value: number, dark: boolean): { background: string; color: string } {
  const shade = colour(value, dark);
  return { background: `rgb(${shade.join()})`, color: luminance(shade) > 0.179 ? "#000" : "#fff" };
}

export function HeatTable({ title, depths, lengths, rows }: { title: string; depths: number[]; lengths: number[]; rows: RecallRow[] }) {
  const dark = theme.value === "dark", label = `accuracy by length and depth, ${title}`;
  const csv = () => [["depth", "length", "n", "accuracy", "low", "high"], ...rows.flatMap((row) => row.by_depth.map((each) => [each.depth, row.length, each.examples, each.accuracy, ...(each.interval ?? [null, null])]))];
  return (
    <Table label={label} csv={csv}>
      <caption>{title}</caption>
      <thead><tr><th scope="col">depth</th>{lengths.map((length) => <th key={length} scope="col" class="number">{length.toLocaleString("en")}</th>)}</tr></thead>
      <tbody>{depths.map((depth, place) => (
        <tr key={depth}>
          <th scope="row" class="number">{depth.toFixed(2)}</th>
          {lengths.map((length) => {
            const { accuracy = null, examples = 0, interval = null } = rows.find((row) => row.length === length)?.by_depth[place] ?? {};
            if (accuracy == null) return <td key={length} class="shade">–</td>;
            const ends = interval?.[0] != null && interval[1] != null ? `, 95% interval ${interval[0].toFixed(2)} to ${interval[1].toFixed(2)}` : "";
            return <td key={length} class="number shade" style={look(accuracy, dark)} title={`n = ${examples}${ends}`}>{accuracy.toFixed(2)}</td>;
          })}
        </tr>
      ))}</tbody>
    </Table>
  );
}
