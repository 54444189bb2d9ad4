// What the page is given, read from the one JSON inside it.
import type { PackedModel } from "./model";

export interface Finding {
  text: string;
  details: Record<string, string>;
  withheld: string | null;
  more: boolean; // told below the others
}

export interface HeadRow {
  head: string;
  accuracy: number;
  drop: number;
  interval: [number, number] | null;
  loss_increase: number;
  verdict: string;
  pattern: string | null;
  by_stratum: { stratum: string; examples: number; errors: number }[];
}

export interface Heads {
  subject: string;
  baseline: number;
  examples: number;
  ablation: string;
  max_drop: number;
  heads: HeadRow[];
  alone: { count: number; heads: string[] } | null;
  alone_removed_together: { accuracy: number } | null;
  together: { count: number; heads: string[]; accuracy: number; optimal: boolean } | null;
  curves: { order: string; accuracy: number[]; heads: string[][] }[];
  pairs: { heads: [string, string]; drop: number; sum_of_drops: number; backup: number }[];
  withheld: { check: string; reason: string }[];
}

export interface LengthRow {
  positions: string;
  index: string;
  pooling: string | null;
  seed: number;
  probe: string;
  length: number;
  accuracy: number;
  interval: [number, number];
  constant: boolean;
}

export interface Lengths {
  name: string;
  task: string;
  track: string;
  train_lengths: [number, number];
  rows: LengthRow[];
  reach: { positions: string; index: string; probe: string; by_seed: Record<string, number | null>; median: number | null; worst: number | null }[];
  findings: string[];
}

export interface Content {
  title: string;
  findings: Finding[];
  model: PackedModel | null;
  heads: Heads | null;
  lengths: Lengths[];
  certificates: { run: string; contexts: number; smallest_margin: number }[];
  made: { facts: Record<string, string>; commands: string[]; runs: Record<string, string | number | null>[] };
  missing: { what: string; command: string }[];
  files: { name: string; text: string }[];
}

export const content: Content = JSON.parse(document.getElementById("content")!.textContent!);
