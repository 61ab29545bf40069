//! Two tiers of K/V memory: the *host* tier holds every page, the *device* tier a few of them, within a budget.
//!
//! What attention reads lies in the device tier while it is read. Where a step's pages do not fit it at once, the layer's
//! work is carried out in [`Waves`]: some units after the other, each wave's pages brought before it. A row's result does
//! not depend on how its blocks are grouped (see `attend`), so it is the same bits as with everything resident.
//!
//! K/V of a step's own rows are made on the device and written through to the host tier at once, so that a page that goes
//! from the device is never written back. Every byte that crosses is counted ([`Link`]).

mod moving;

pub use moving::Moving;

use super::attend::{AttendWork, BLOCK, Unit};
use crate::kv::PAGE_TOKENS;
use std::ops::Range;
use std::time::Instant;

/// Pages of one layer that the device tier must hold at least: a row's block, where every token lies in a page of its own.
pub const LEAST_PAGES: usize = BLOCK;

/// What crossed the link between the tiers, since the device was made.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Link {
    pub to_device_bytes: u64,
    pub to_host_bytes: u64,
    /// Pages of a layer, or rows of a page and head, that attention wanted: those that were on the device, and those that
    /// were brought.
    pub hits: u64,
    pub fetches: u64,
    /// How many of them went from the device for others.
    pub evictions: u64,
    /// Bytes of the device tier, and the most that were ever in use.
    pub budget_bytes: u64,
    pub peak_bytes: u64,
    /// Pages of branches that paused, which gave up their frames, and pages that came back with theirs.
    pub moved_out: u64,
    pub moved_back: u64,
    /// Tokens before a selecting row that it attended to, and all of them, summed over rows, K/V heads and layers.
    pub attended: u64,
    pub past: u64,
    /// Rows and heads of which full attention was computed beside the selected one, and the sum of what that missed: the
    /// weight that full attention gives to tokens that were not attended to.
    pub samples: u64,
    pub missed: f64,
    /// Seconds that transfers to the device took, and that steps waited for them, both by the device's own clock. A copy
    /// inside main memory is waited for as long as it takes.
    pub fetch_seconds: f64,
    pub waited_seconds: f64,
}

impl Link {
    /// Copies were made in line since `began`, when `fetches` was so many: all of that time was waited for. Looking for
    /// what was here already is no transfer.
    pub fn transferred(&mut self, fetches: u64, began: Instant) {
        if self.fetches > fetches {
            let seconds = began.elapsed().as_secs_f64();
            self.fetch_seconds += seconds;
            self.waited_seconds += seconds;
        }
    }
}

/// A work's units in an order and grouping in which each wave fits the device tier.
#[derive(Debug, Clone, Default)]
pub struct Waves {
    /// The work's units; one that fits no wave is split by rows.
    pub units: Vec<Unit>,
    /// Runs of units that one thread takes together, as [`AttendWork::tasks`].
    pub tasks: Vec<Range<u32>>,
    /// Runs of tasks.
    pub waves: Vec<Range<u32>>,
    halves: Vec<Unit>,
    /// The work's tasks, the first units first.
    ordered: Vec<Range<u32>>,
}

impl Waves {
    /// Groups `work` so that the units of each wave cost at most `room` together. One row's unit must not cost more.
    /// Units keep their order, whatever order the tasks have: who takes a whole K/V head needs a row's blocks one after another.
    pub fn plan(&mut self, work: &AttendWork, room: usize, cost: &mut dyn FnMut(&Unit) -> usize) {
        self.units.clear();
        self.tasks.clear();
        self.waves.clear();
        self.ordered.clear();
        self.ordered.extend_from_slice(&work.tasks);
        self.ordered.sort_unstable_by_key(|task| task.start);
        let (mut used, ordered) = (0, std::mem::take(&mut self.ordered));
        for task in &ordered {
            let mut first = self.units.len() as u32;
            for unit in &work.units[task.start as usize..task.end as usize] {
                self.halves.push(unit.clone());
                while let Some(unit) = self.halves.pop() {
                    let cost = cost(&unit);
                    if cost > room && unit.rows.len() > 1 {
                        let middle = unit.rows.start.midpoint(unit.rows.end);
                        let Unit { block, pieces, rows } = unit;
                        self.halves.push(Unit { block, pieces: pieces.clone(), rows: middle..rows.end });
                        self.halves.push(Unit { block, pieces, rows: rows.start..middle });
                        continue;
                    }
                    assert!(cost <= room, "a block of one row costs {cost} of {room}");
                    if used + cost > room {
                        self.end_task(first);
                        self.end_wave();
                        (first, used) = (self.units.len() as u32, 0);
                    }
                    used += cost;
                    self.units.push(unit);
                }
            }
            self.end_task(first);
        }
        self.end_wave();
        self.ordered = ordered;
    }

    fn end_task(&mut self, first: u32) {
        if first < self.units.len() as u32 {
            self.tasks.push(first..self.units.len() as u32);
        }
    }

    fn end_wave(&mut self) {
        let (from, to) = (self.waves.last().map_or(0, |wave| wave.end), self.tasks.len() as u32);
        if from < to {
            self.waves.push(from..to);
        }
    }

    /// K/V heads that a thread may take through all units: none where those are not there at once.
    pub fn whole_heads(&self, work: &AttendWork) -> u32 {
        if self.waves.len() == 1 { work.whole_heads } else { 0 }
    }

    /// Units of a wave.
    pub fn units_of(&self, wave: &Range<u32>) -> &[Unit] {
        let tasks = &self.tasks[wave.start as usize..wave.end as usize];
        let (first, last) = (tasks.first().map_or(0, |t| t.start), tasks.last().map_or(0, |t| t.end));
        &self.units[first as usize..last as usize]
    }
}

/// Indices into [`AttendWork::pages`] of what a unit's rows read. A page that two pieces share comes twice.
pub fn page_entries<'a>(work: &'a AttendWork, unit: &'a Unit) -> impl Iterator<Item = usize> + 'a {
    let pieces = &work.pieces[unit.pieces.start as usize..unit.pieces.end as usize];
    let read = pieces.iter().filter(|p| p.rows.start.max(unit.rows.start) < p.rows.end.min(unit.rows.end));
    read.flat_map(|p| {
        let pages = (p.start as usize % PAGE_TOKENS + p.len as usize).div_ceil(PAGE_TOKENS);
        p.first_page as usize..p.first_page as usize + pages
    })
}

/// Steps after which a page that no row saw belongs to a paused branch.
const PAUSED: u32 = 4;

/// Which pages the steps' rows see: those of paused branches move out whole, and come back when rows see them again.
#[derive(Debug, Clone)]
pub struct Moves {
    step: u32,
    /// The step that saw each page last; 0 for pages that are out or were never seen.
    seen: Vec<u32>,
    /// Whether each page moved out and holds the same tokens still.
    out: Vec<bool>,
    /// Pages that are here, in no order.
    active: Vec<u32>,
    /// Pages that rows are expected to see: they stay, seen or not.
    soon: Vec<u32>,
    is_soon: Vec<bool>,
}

impl Moves {
    pub fn new(pages: usize) -> Self {
        Self {
            step: 0,
            seen: vec![0; pages],
            out: vec![false; pages],
            active: Vec::new(),
            soon: Vec::new(),
            is_soon: vec![false; pages],
        }
    }

    /// What the search expects takes the place of what it expected before: which pages move out now, and which come back.
    pub fn expect(
        &mut self,
        soon: impl Iterator<Item = u32>,
        later: impl Iterator<Item = u32>,
    ) -> (Vec<u32>, Vec<u32>) {
        // Step 0 means not seen.
        self.step = self.step.max(1);
        for page in self.soon.drain(..) {
            self.is_soon[page as usize] = false;
        }
        let mut back = Vec::new();
        for page in soon {
            if !std::mem::replace(&mut self.is_soon[page as usize], true) {
                self.soon.push(page);
                if std::mem::take(&mut self.out[page as usize]) {
                    self.seen[page as usize] = self.step;
                    self.active.push(page);
                    back.push(page);
                }
            }
        }
        let mut out = Vec::new();
        for page in later {
            if self.seen[page as usize] > 0 && !self.is_soon[page as usize] {
                (self.seen[page as usize], self.out[page as usize]) = (0, true);
                out.push(page);
            }
        }
        self.active.retain(|&page| self.seen[page as usize] > 0);
        (out, back)
    }

    /// A step's rows see these pages: which ones move out now, and which come back. O(pages of the last steps).
    pub fn step(&mut self, pages: &[u32]) -> (Vec<u32>, Vec<u32>) {
        self.step += 1;
        let mut back = Vec::new();
        for &page in pages {
            if std::mem::replace(&mut self.seen[page as usize], self.step) == 0 {
                self.active.push(page);
                if std::mem::take(&mut self.out[page as usize]) {
                    back.push(page);
                }
            }
        }
        let mut out = Vec::new();
        let (step, seen, outside, soon) = (self.step, &mut self.seen, &mut self.out, &self.is_soon);
        self.active.retain(|&page| {
            let stays = soon[page as usize] || step - seen[page as usize] < PAUSED;
            if !stays {
                (seen[page as usize], outside[page as usize]) = (0, true);
                out.push(page);
            }
            stays
        });
        (out, back)
    }

    /// These pages hold nothing any more.
    pub fn forget(&mut self, pages: &[u32]) {
        for &page in pages {
            (self.out[page as usize], self.is_soon[page as usize]) = (false, false);
            self.seen[page as usize] = 0;
        }
        self.active.retain(|&page| self.seen[page as usize] > 0);
    }
}

/// A run of a path's tokens in one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Absolute position of the first.
    pub start: u32,
    pub len: u32,
    pub page: u32,
}

/// Where the tokens of every work row's path lie, its own included, in order.
#[derive(Debug, Clone, Default)]
pub struct Paths {
    first: Vec<usize>,
    runs: Vec<Run>,
    of_rows: Vec<Vec<Run>>,
}

impl Paths {
    /// Reads them off the work. O(rows × pages of their paths).
    pub fn read(&mut self, work: &AttendWork) {
        let page = PAGE_TOKENS as u32;
        let rows = &mut self.of_rows;
        rows.resize_with(work.rows().max(rows.len()), Vec::new);
        for unit in &work.units {
            for piece in &work.pieces[unit.pieces.start as usize..unit.pieces.end as usize] {
                for row in piece.rows.start.max(unit.rows.start)..piece.rows.end.min(unit.rows.end) {
                    let end = (piece.start + piece.len).min(work.positions[row as usize] + 1);
                    let mut start = piece.start;
                    while start < end {
                        let next = (start / page + 1) * page;
                        let entry = piece.first_page + start / page - piece.start / page;
                        let len = next.min(end) - start;
                        rows[row as usize].push(Run { start, len, page: work.pages[entry as usize] });
                        start = next;
                    }
                }
            }
        }
        self.first.clear();
        self.runs.clear();
        self.first.push(0);
        for row in &mut rows[..work.rows()] {
            row.sort_by_key(|run| run.start);
            self.runs.append(row);
            self.first.push(self.runs.len());
        }
    }

    pub fn row(&self, row: usize) -> &[Run] {
        &self.runs[self.first[row]..self.first[row + 1]]
    }
}

#[cfg(test)]
mod tests {
    use super::super::attend::Piece;
    use super::*;

    /// Four rows that share block 0 and have a piece each of block 1, in two tasks.
    fn work() -> AttendWork {
        let piece = |start: u32, len, first_page, rows| Piece { start, len, first_page, rows };
        let mut pieces = vec![piece(0, 256, 0, 0..4)];
        pieces.extend((0..4).map(|r| piece(256, 20, 16 + 2 * r, r..r + 1)));
        AttendWork {
            order: (0..4).collect(),
            positions: vec![275; 4],
            pages: (0..24).collect(),
            pieces,
            units: vec![Unit { block: 0, pieces: 0..1, rows: 0..4 }, Unit { block: 1, pieces: 1..5, rows: 0..4 }],
            tasks: vec![0..1, 1..2],
            ..AttendWork::default()
        }
    }

    #[test]
    fn pages_of_paused_branches_move_out_once_and_come_back_when_they_are_seen() {
        let mut moves = Moves::new(10);
        assert_eq!(moves.step(&[0, 1, 2, 1]), (vec![], vec![]));
        for _ in 1..PAUSED {
            assert_eq!(moves.step(&[0, 3]), (vec![], vec![]));
        }
        assert_eq!(moves.step(&[0, 3]), (vec![1, 2], vec![]));
        assert_eq!(moves.step(&[0, 3]), (vec![], vec![]));
        moves.forget(&[2]);
        assert_eq!(moves.step(&[0, 2, 1]), (vec![], vec![1]));
        assert_eq!(moves.step(&[0, 1]), (vec![], vec![]));
    }

    #[test]
    fn what_the_search_expects_moves_at_once_and_stays_while_it_is_expected() {
        let mut moves = Moves::new(10);
        moves.step(&[0, 1, 2, 3]);
        let expect =
            |moves: &mut Moves, soon: &[u32], later: &[u32]| moves.expect(soon.iter().copied(), later.iter().copied());
        // A page that is wanted soon does not go, nor one that is out already.
        assert_eq!(expect(&mut moves, &[0, 1], &[1, 2, 2, 7]), (vec![2], vec![]));
        for _ in 0..2 * PAUSED {
            assert!(!moves.step(&[0]).0.contains(&1), "it is expected");
        }
        assert_eq!(expect(&mut moves, &[0, 2, 3], &[]), (vec![], vec![2, 3]));
        assert_eq!(moves.step(&[0]), (vec![1], vec![]), "no more expected, and not seen for long");
        assert_eq!(moves.step(&[0, 2]), (vec![], vec![]), "it came back before");
        moves.forget(&[2, 3]);
        for _ in 0..PAUSED {
            moves.step(&[0]);
        }
        // What is gone comes back with nobody.
        assert_eq!(expect(&mut moves, &[1, 3], &[0]), (vec![0], vec![1]));
    }

    #[test]
    fn waves_fit_the_room_and_cover_every_unit_and_row_once() {
        let mut work = work();
        work.tasks.reverse();
        for room in [16, 17, 20, 24, 100] {
            let mut waves = Waves::default();
            waves.plan(&work, room, &mut |unit| page_entries(&work, unit).count());
            let mut seen = vec![[0; 2]; 4];
            for wave in &waves.waves {
                let units = waves.units_of(wave);
                let cost: usize = units.iter().map(|u| page_entries(&work, u).count()).sum();
                assert!(cost <= room, "{cost} of {room}");
                for unit in units {
                    for row in unit.rows.clone() {
                        seen[row as usize][unit.block as usize] += 1;
                    }
                }
            }
            assert!(seen.iter().all(|s| *s == [1, 1]), "room {room}: {seen:?}");
            assert!(waves.units.is_sorted_by_key(|unit| unit.block), "units stand in their order, whatever tasks do");
            assert_eq!(waves.waves.len(), if room >= 24 { 1 } else { 2 }, "room {room}");
        }
    }

    #[test]
    fn a_unit_that_is_too_large_is_split_by_rows() {
        let mut work = work();
        work.tasks.remove(0);
        let mut waves = Waves::default();
        waves.plan(&work, 5, &mut |unit| page_entries(&work, unit).count());
        assert_eq!(waves.units.iter().map(|u| u.rows.clone()).collect::<Vec<_>>(), [0..2, 2..4]);
        assert_eq!((waves.tasks, waves.waves), (vec![0..1, 1..2], vec![0..1, 1..2]));
    }
}
