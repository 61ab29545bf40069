//! Taking a subtree out of the plan and putting a part in: what stands behind moves, and the nodes above count anew. The
//! places are ranges because nodes stand in depth-first order; only pieces in a unit that begins above lie apart.

use super::{Base, Planner, SegmentId};
use crate::device::attend::{BLOCK, Piece};
use std::ops::Range;

/// A subtree's place in the plan, or an empty one.
#[derive(Debug, Clone)]
pub(super) struct Place {
    parent: Option<u32>,
    /// Absolute position at which the subtree starts.
    start: u32,
    nodes: Range<u32>,
    rows: Range<u32>,
    pages: Range<u32>,
    units: Range<u32>,
    /// Pieces of these units, and those in the parent's last unit.
    pieces: Range<u32>,
    joined: Range<u32>,
    /// The parent's last unit, where grouped by K/V.
    joint: Option<u32>,
}

impl Place {
    pub fn base(&self, by_query: bool) -> Base {
        Base {
            by_query,
            node: self.nodes.start,
            row: self.rows.start,
            page: self.pages.start,
            unit: self.units.start,
            piece: self.pieces.start,
            joined: self.joined.start,
        }
    }
}

/// What was above the place: numbers that hold for pieces and units from there, and for no other.
struct Above {
    rows: (u32, u32),
    start: u32,
}

impl Above {
    fn holds(&self, rows: &Range<u32>, start: u32) -> bool {
        rows.start <= self.rows.0 && rows.end >= self.rows.1 && start < self.start
    }
}

impl Planner {
    /// The place of the subtree of `node`.
    pub(super) fn subtree(&self, node: u32) -> Place {
        let n = &self.nodes[node as usize];
        self.place(n.parent, node..node + n.size, n.start)
    }

    /// The place for a new child of `parent` (or a new root) with the number `segment`, starting at `start`.
    pub(super) fn gap(&self, parent: Option<u32>, segment: SegmentId, start: u32) -> Place {
        let mut at = parent.map_or(0, |p| p + 1);
        let end = parent.map_or(self.nodes.len() as u32, |p| p + self.nodes[p as usize].size);
        while at < end && self.nodes[at as usize].segment < segment {
            at += self.nodes[at as usize].size;
        }
        self.place(parent, at..at, start)
    }

    fn place(&self, parent: Option<u32>, nodes: Range<u32>, start: u32) -> Place {
        let work = &self.work;
        let at = |node: u32| self.nodes.get(node as usize);
        let row = |node| at(node).map_or(work.order.len() as u32, |n| n.rows.0);
        let page = |node| at(node).map_or(work.pages.len() as u32, |n| n.first_page);
        let rows = row(nodes.start)..row(nodes.end);
        let unit = |node: u32, row: u32| {
            if self.groups_by_kv() {
                at(node).map_or(work.units.len() as u32, |n| n.first_unit)
            } else {
                work.units.partition_point(|u| u.rows.start < row) as u32
            }
        };
        let units = unit(nodes.start, rows.start)..unit(nodes.end, rows.end);
        let piece = |unit: u32| work.units.get(unit as usize).map_or(work.pieces.len() as u32, |u| u.pieces.start);
        let (mut joined, mut joint) = (0..0, None);
        if let Some(p) = parent.filter(|_| self.groups_by_kv()) {
            let p = &self.nodes[p as usize];
            joint = Some(p.last_unit);
            let above = Above { rows: p.rows, start };
            let all = &work.units[p.last_unit as usize].pieces;
            let piece = |&i: &u32| &work.pieces[i as usize];
            let behind = |i: &u32| !above.holds(&piece(i).rows, piece(i).start) && piece(i).rows.start >= rows.start;
            joined.start = all.clone().find(behind).unwrap_or(all.end);
            joined.end = (joined.start..all.end).find(|i| piece(i).rows.start >= rows.end).unwrap_or(all.end);
        }
        Place {
            parent,
            start,
            pages: page(nodes.start)..page(nodes.end),
            pieces: piece(units.start)..piece(units.end),
            nodes,
            rows,
            units,
            joined,
            joint,
        }
    }

    /// Puts `self.part`, which was built for this place, in the stead of what is there.
    pub(super) fn splice(&mut self, place: &Place) {
        let by_kv = self.groups_by_kv();
        let Self { nodes, tails, work, part, .. } = self;
        let moved = |old: &Range<u32>, new: usize| (new as u32).wrapping_sub(old.end - old.start);
        let (rows, pages) = (moved(&place.rows, part.order.len()), moved(&place.pages, part.pages.len()));
        let (node, unit) = (moved(&place.nodes, part.nodes.len()), moved(&place.units, part.units.len()));
        let joined = moved(&place.joined, part.joined.len());
        let pieces = moved(&place.pieces, part.pieces.len());
        let add = |number: &mut u32, by: u32| *number = number.wrapping_add(by);
        // By query every piece is one branch's.
        let parent = place.parent.filter(|_| by_kv);
        let above = parent.map(|p| Above { rows: nodes[p as usize].rows, start: place.start });
        let is_above = |r: &Range<u32>, start| above.as_ref().is_some_and(|a| a.holds(r, start));

        let move_piece = |p: &mut Piece| {
            if is_above(&p.rows, p.start) {
                add(&mut p.rows.end, rows);
            } else if p.rows.start >= place.rows.end {
                add(&mut p.rows.start, rows);
                add(&mut p.rows.end, rows);
            }
            if p.first_page >= place.pages.end {
                add(&mut p.first_page, pages);
            }
        };
        // By query, and at the root, no piece before the place is shared with it.
        if place.joint.is_some() {
            work.pieces[..place.joined.start as usize].iter_mut().for_each(move_piece);
            work.pieces[place.joined.end as usize..place.pieces.start as usize].iter_mut().for_each(move_piece);
        }
        work.pieces[place.pieces.end as usize..].iter_mut().for_each(move_piece);
        splice(&mut work.pieces, &place.pieces, &mut part.pieces);
        splice(&mut work.pieces, &place.joined, &mut part.joined);

        let (before, behind) = work.units.split_at_mut(place.units.end as usize);
        if let Some(joint) = place.joint {
            for u in &mut before[..place.units.start as usize] {
                if is_above(&u.rows, u.block * BLOCK as u32) {
                    add(&mut u.rows.end, rows);
                }
            }
            add(&mut before[joint as usize].pieces.end, joined);
            for u in &mut before[joint as usize + 1..place.units.start as usize] {
                add(&mut u.pieces.start, joined);
                add(&mut u.pieces.end, joined);
            }
        }
        for u in behind {
            add(&mut u.rows.start, rows);
            add(&mut u.rows.end, rows);
            add(&mut u.pieces.start, joined.wrapping_add(pieces));
            add(&mut u.pieces.end, joined.wrapping_add(pieces));
        }
        splice(&mut work.units, &place.units, &mut part.units);

        // Where a new row is not alone at the end of its path, the plan has no tail for each, and is not followed.
        if tails.len() != work.order.len() || part.tails.len() != part.order.len() {
            tails.clear();
        }
        for t in tails.iter_mut() {
            if t.node >= place.nodes.end {
                add(&mut t.node, node);
            }
            if t.piece >= place.pieces.end {
                add(&mut t.piece, joined.wrapping_add(pieces));
            } else if place.joint.is_some() && t.piece >= place.joined.end {
                add(&mut t.piece, joined);
            }
        }
        if tails.len() == work.order.len() {
            splice(tails, &place.rows, &mut part.tails);
        }

        for n in &mut nodes[place.nodes.end as usize..] {
            if let Some(p) = n.parent.as_mut().filter(|p| **p >= place.nodes.end) {
                add(p, node);
            }
            add(&mut n.rows.0, rows);
            add(&mut n.rows.1, rows);
            add(&mut n.first_page, pages);
            if by_kv {
                add(&mut n.first_unit, unit);
                if n.last_unit >= place.units.end {
                    add(&mut n.last_unit, unit);
                }
            }
        }
        let mut up = place.parent;
        while let Some(at) = up {
            let n = &mut nodes[at as usize];
            add(&mut n.size, node);
            add(&mut n.rows.1, rows);
            up = n.parent;
        }
        splice(nodes, &place.nodes, &mut part.nodes);

        splice(&mut work.order, &place.rows, &mut part.order);
        splice(&mut work.positions, &place.rows, &mut part.positions);
        splice(&mut work.pages, &place.pages, &mut part.pages);
        self.number_partials(place.rows.start as usize);
    }
}

/// `vec[range]` becomes `new`, which is left empty.
fn splice<T>(vec: &mut Vec<T>, range: &Range<u32>, new: &mut Vec<T>) {
    vec.splice(range.start as usize..range.end as usize, new.drain(..));
}
