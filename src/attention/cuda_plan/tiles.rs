//! Tiles: tokens in the order of their runs, packed into the kernel's groups of 16 neighbours in memory and tiles of four
//! groups.

use super::flat::{Flat, Run, Stretch};
use crate::device::cuda::work::{GROUP, TILE, Tile};

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

    /// Appends the tiles of `runs`. Groups of neighbours in memory are packed without gaps.
    pub fn push<'r>(&mut self, flat: &Flat, runs: impl Iterator<Item = &'r Run>) {
        let mut fill = TileFill::new(self, flat.is_paged());
        for run in runs {
            let sees = run.row | run.row_end << 16;
            for &Stretch { slot, len } in flat.stretches(run) {
                let (mut slot, mut len) = (slot, len as usize);
                while len > 0 {
                    let part = fill.room(slot).min(len);
                    fill.push(part, sees);
                    (slot, len) = (slot + part as u32, len - part);
                }
            }
        }
        fill.flush();
    }
}

/// Packs tokens into tiles, in place.
struct TileFill<'t> {
    tiles: &'t mut Tiles,
    paged: bool,
    /// Rows that see any token of the tile that is being filled, and all of them. Words of their own: narrow numbers that
    /// are written as halves and read as one would stall every run.
    some: [u32; 2],
    all: [u32; 2],
    tokens: u32,
    /// Tokens and gaps in the tile; none is where it is 0.
    len: usize,
    /// The slot that would go on in the present group, where it has room.
    next: u32,
}

impl<'t> TileFill<'t> {
    const SOME: [u32; 2] = [u32::MAX, 0];
    const ALL: [u32; 2] = [0, u32::MAX];
    /// No row sees all 64 tokens of a tile that holds fewer.
    const GAP: [u32; 2] = [u16::MAX as u32, 0];

    fn new(tiles: &'t mut Tiles, paged: bool) -> Self {
        let mut fill = Self { tiles, paged, some: Self::SOME, all: Self::ALL, tokens: 0, len: 0, next: 0 };
        fill.begin();
        fill
    }

    /// A place for the next tile.
    fn begin(&mut self) {
        if self.tiles.tiles.len() == self.tiles.briefs.len() {
            self.tiles.tiles.push(EMPTY);
        }
    }

    fn tile(&mut self) -> &mut Tile {
        let at = self.tiles.briefs.len();
        &mut self.tiles.tiles[at]
    }

    /// How many consecutive slots from `slot` on fit into the present group; begins a new group where `slot` is not the
    /// neighbour of the last token.
    #[inline]
    fn room(&mut self, slot: u32) -> usize {
        let inside = self.len % GROUP;
        let page = slot as usize % GROUP;
        let page_room = if self.paged { GROUP - page } else { GROUP };
        if inside > 0 {
            if slot == self.next && !(self.paged && page == 0) {
                return (GROUP - inside).min(page_room);
            }
            self.all = Self::GAP;
            self.advance(GROUP - inside);
        }
        let group = self.len / GROUP;
        self.tile().group[group] = slot;
        self.next = slot;
        page_room
    }

    /// `len` tokens that follow the last one, for which there is room. What comes after them in the group is a gap until
    /// more are pushed.
    #[inline]
    fn push(&mut self, len: usize, sees: u32) {
        let (group, inside) = (self.len / GROUP, self.len % GROUP);
        let end = inside + len;
        let (row, row_end) = (sees & 0xffff, sees >> 16);
        let at = self.tiles.briefs.len();
        let rows = &mut self.tiles.tiles[at].rows.as_chunks_mut::<GROUP>().0[group];
        // All lanes at once: a copy of a few would be a call.
        for (lane, rows) in rows.iter_mut().enumerate() {
            let new = if lane < end { sees } else { 0 };
            *rows = if lane < inside { *rows } else { new };
        }
        self.some = [self.some[0].min(row), self.some[1].max(row_end)];
        self.all = [self.all[0].max(row), self.all[1].min(row_end)];
        self.tokens += len as u32;
        self.next += len as u32;
        self.advance(len);
    }

    #[inline]
    fn advance(&mut self, len: usize) {
        self.len += len;
        if self.len == TILE {
            let has_gap = self.all[0] == Self::GAP[0];
            let tile = self.tile();
            let first = tile.group[0];
            let follows = (0..TILE / GROUP).all(|g| tile.group[g] == first + (g * GROUP) as u32);
            tile.whole = u32::from(follows && !has_gap);
            self.end();
        }
    }

    fn end(&mut self) {
        // Row numbers are 16-bit (`MAX_ROWS`).
        let (some, all) = (self.some.map(|row| row as u16), self.all.map(|row| row as u16));
        let tile = self.tile();
        (tile.some, tile.all) = (some, all);
        self.tiles.briefs.push(Brief { some, tokens: self.tokens as u16 });
        // What the tile's place held before is written over: its tokens, gaps and groups.
        (self.some, self.all) = (Self::SOME, Self::ALL);
        (self.tokens, self.len) = (0, 0);
        self.begin();
    }

    /// Groups that stay empty repeat the first, so that every copy reads memory that exists.
    fn flush(mut self) {
        if self.len > 0 {
            let used = self.len.div_ceil(GROUP);
            let tile = self.tile();
            let first = tile.group[0];
            tile.group[used..].fill(first);
            tile.rows[used * GROUP..].fill(0);
            tile.whole = 0;
            self.all = Self::GAP;
            self.end();
        }
    }
}
