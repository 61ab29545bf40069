//! Tiles: tokens in the order of their runs, packed into the kernel's groups of 16 neighbours in memory and tiles of four
//! groups.

use super::flat::{Flat, Stretch};
use crate::device::cuda::work::{GROUP, TILE, Tile};
use std::ops::Range;

/// Tiles, and room for those of the next step.
#[derive(Debug, Clone, Default)]
pub struct Tiles {
    /// The kernel's; past `briefs.len()` some that stand for nothing, to be written over.
    pub tiles: Vec<Tile>,
    /// What of each a cut asks for, close together.
    pub briefs: Vec<Brief>,
}

#[derive(Debug, Clone, Copy)]
pub struct Brief {
    /// Rows that see any of the tokens.
    pub some: [u16; 2],
    pub tokens: u16,
}

const EMPTY: Tile =
    Tile { group: [0; TILE / GROUP], rows: [0; TILE], some: [u16::MAX, 0], all: [u16::MAX, 0], whole: 0, unused: 0 };

impl Tiles {
    pub fn len(&self) -> usize {
        self.briefs.len()
    }

    /// Forgets all, and keeps the room.
    pub fn clear(&mut self) {
        self.briefs.clear();
    }

    /// Ends with the last tile: what stood behind it is gone.
    pub fn end(&mut self) {
        self.tiles.truncate(self.briefs.len());
    }

    /// Tokens of `count` tiles from `first` on.
    pub fn tokens(&self, first: u32, count: u32) -> u64 {
        self.briefs[first as usize..(first + count) as usize].iter().map(|b| u64::from(b.tokens)).sum()
    }

    /// Appends the tiles of these stretches of `flat`. Groups of neighbours in memory are packed without gaps.
    pub fn push(&mut self, flat: &Flat, stretches: impl Iterator<Item = Range<usize>>) {
        let mut fill = TileFill::new(self);
        for range in stretches {
            let mut left = &flat.stretches[range];
            while let Some((&stretch, others)) = left.split_first() {
                if !flat.paged {
                    fill.push_unpaged(stretch);
                } else if let Some((tile, others)) = left.split_first_chunk()
                    && fill.push_tile(tile)
                {
                    left = others;
                    continue;
                } else {
                    // A stretch ends with its page, so it lies in one group.
                    fill.push::<true>(stretch);
                }
                left = others;
            }
        }
        fill.flush();
    }
}

/// Packs tokens into tiles, in place.
struct TileFill<'t> {
    tiles: &'t mut Tiles,
    /// Groups of the tile that have tokens, and the tokens of the last one.
    groups: usize,
    inside: u32,
    /// Tokens that the groups before it lack.
    lacking: u32,
    /// The slot that follows the last one.
    next: u32,
    /// What the last stretch said of its rows.
    sees: u32,
    /// Rows that see any token of the tile, and all of them. Words of their own: narrow numbers that are written as halves
    /// and read as one would stall every stretch.
    some: [u32; 2],
    all: [u32; 2],
}

const LANES: u32 = GROUP as u32;
const GROUPS: usize = TILE / GROUP;

impl<'t> TileFill<'t> {
    fn new(tiles: &'t mut Tiles) -> Self {
        let mut fill = Self {
            tiles,
            groups: 0,
            inside: LANES,
            lacking: 0,
            next: 0,
            sees: 0,
            some: [u32::MAX, 0],
            all: [0, u32::MAX],
        };
        fill.begin();
        fill
    }

    /// A place for the next tile. What it held before is written over.
    #[inline(always)]
    fn begin(&mut self) {
        if self.tiles.tiles.len() == self.tiles.briefs.len() {
            self.tiles.tiles.push(EMPTY);
        }
        (self.groups, self.inside, self.lacking, self.sees) = (0, LANES, 0, 0);
        (self.some, self.all) = ([u32::MAX, 0], [0, u32::MAX]);
    }

    /// Puts a stretch, or as much of it as there is room for, into the group, or into a new one where its slot is not the
    /// neighbour of the last token; how much. The rest of the group is a gap until more comes.
    #[inline(always)]
    fn push<const PAGED: bool>(&mut self, Stretch { slot, len, sees }: Stretch) -> u32 {
        let same_page = !PAGED || !slot.is_multiple_of(LANES);
        let put;
        if slot == self.next && self.inside < LANES && same_page {
            put = if PAGED { len } else { len.min(LANES - self.inside) };
            let (first, end) = (self.inside, self.inside + put);
            let mask = |holds: bool| u32::from(holds).wrapping_neg();
            for (lane, rows) in (0..LANES).zip(self.rows()) {
                *rows = *rows & mask(lane < first) | sees & mask(lane >= first) & mask(lane < end);
            }
            self.inside = end;
        } else {
            self.lacking += LANES - self.inside;
            if self.groups == GROUPS {
                self.end();
            }
            self.groups += 1;
            put = if PAGED { len } else { len.min(LANES) };
            // All lanes at once, as vectors: copying a few would be a call.
            for (lane, rows) in (0..LANES).zip(self.rows()) {
                *rows = if lane < put { sees } else { 0 };
            }
            let at = self.tiles.briefs.len();
            self.tiles.tiles[at].group[self.groups - 1] = slot;
            self.inside = put;
        }
        self.next = slot + put;
        if sees != self.sees {
            let (row, row_end) = (sees & 0xffff, sees >> 16);
            self.some = [self.some[0].min(row), self.some[1].max(row_end)];
            self.all = [self.all[0].max(row), self.all[1].min(row_end)];
            self.sees = sees;
        }
        put
    }

    #[inline(always)]
    fn push_unpaged(&mut self, mut stretch: Stretch) {
        while stretch.len > 0 {
            let put = self.push::<false>(stretch);
            (stretch.slot, stretch.len) = (stretch.slot + put, stretch.len - put);
        }
    }

    /// A tile of four whole pages that the same rows see, at once; false where it is not one.
    #[inline(always)]
    fn push_tile(&mut self, pages: &[Stretch; GROUPS]) -> bool {
        let sees = pages[0].sees;
        let whole = pages.iter().fold(true, |whole, page| whole & (page.len == LANES) & (page.sees == sees));
        if !whole || !self.groups.is_multiple_of(GROUPS) {
            return false;
        }
        if self.groups == GROUPS {
            self.lacking += LANES - self.inside;
            self.end();
        }
        let at = self.tiles.briefs.len();
        let tile = &mut self.tiles.tiles[at];
        tile.group = pages.map(|page| page.slot);
        tile.rows = [sees; TILE];
        let rows = [sees & 0xffff, sees >> 16];
        (self.some, self.all, self.sees) = (rows, rows, sees);
        (self.groups, self.inside, self.next) = (GROUPS, LANES, pages[GROUPS - 1].slot + LANES);
        true
    }

    /// Of the last group.
    #[inline(always)]
    fn rows(&mut self) -> &mut [u32; GROUP] {
        let at = self.tiles.briefs.len();
        &mut self.tiles.tiles[at].rows.as_chunks_mut::<GROUP>().0[self.groups - 1]
    }

    #[inline(always)]
    fn end(&mut self) {
        let at = self.tiles.briefs.len();
        let tile = &mut self.tiles.tiles[at];
        let first = tile.group[0];
        let follows = (0..GROUPS).all(|g| tile.group[g] == first + (g * GROUP) as u32);
        // Row numbers are 16-bit (`MAX_ROWS`). No row sees all 64 tokens of a tile that holds fewer.
        let [some, all] = [self.some, self.all].map(|range| range.map(|row| row as u16));
        tile.some = some;
        tile.all = if self.lacking > 0 { [u16::MAX, 0] } else { all };
        tile.whole = u32::from(follows && self.lacking == 0);
        self.tiles.briefs.push(Brief { some, tokens: (TILE as u32 - self.lacking) as u16 });
        self.begin();
    }

    /// Groups that stay empty repeat the first, so that every copy reads memory that exists.
    #[inline(always)]
    fn flush(mut self) {
        if self.groups == 0 {
            return;
        }
        self.lacking += LANES - self.inside + ((GROUPS - self.groups) * GROUP) as u32;
        let at = self.tiles.briefs.len();
        let (tile, groups) = (&mut self.tiles.tiles[at], self.groups);
        let first = tile.group[0];
        tile.group[groups..].fill(first);
        tile.rows[groups * GROUP..].fill(0);
        self.end();
    }
}
