// The unit of costs in a study: the drop in accuracy, or the increase of a loss.
import type { HeadRow, Heads } from "./content";

export function costOf(heads: Heads, row: HeadRow): number | null {
  return heads.counted ? row.loss_increase : row.drop;
}

export function marginOf(heads: Heads): number {
  return (heads.counted ? heads.max_loss_increase : heads.max_drop) ?? heads.max_drop;
}

export function boundsOf(row: HeadRow): [number, number] | null {
  const [low, high] = row.interval ?? [null, null];
  return low == null || high == null ? null : [low, high];
}

/** Whether heads are judged by exact match. */
export function exact(heads: Heads): boolean {
  return (heads.metric ?? "exact") === "exact";
}

export function fixed(value: number | null | undefined, digits = 4): string {
  return value == null ? "\u2013" : value.toFixed(digits);
}
