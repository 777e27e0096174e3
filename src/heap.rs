//! The heap of a process that mostly lives for a millisecond: freeing and reusing memory costs such a process more than
//! the memory is worth.
//!
//! The first blocks come from two arenas, by moving an offset, and only the last block of each is ever given back to it.
//! Large blocks have an arena of their own: a vector that grows is mostly the last of them, and grows where it is. The
//! system's allocator provides everything that does not fit, as in a process that lives longer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of an arena: more than a run without a wait needs. The kernel provides only the pages that are touched.
const SIZE: usize = 160 * 1024;
/// Bytes of a large block.
const LARGE: usize = 1024;

pub struct Heap {
    small: Arena,
    large: Arena,
}

#[repr(align(64))]
struct Bytes(UnsafeCell<[u8; SIZE]>);

struct Arena {
    bytes: Bytes,
    used: AtomicUsize,
}

// SAFETY: a byte of the arena belongs to one block, which `used` assigns to one caller; giving it back happens before
// the next caller gets it.
unsafe impl Sync for Arena {}

impl Arena {
    const fn new() -> Arena {
        Arena { bytes: Bytes(UnsafeCell::new([0; SIZE])), used: AtomicUsize::new(0) }
    }

    fn base(&self) -> *mut u8 {
        self.bytes.0.get().cast()
    }

    /// Returns where in the arena a block begins, if it is there.
    fn offset(&self, block: *mut u8) -> Option<usize> {
        (block as usize).checked_sub(self.base() as usize).filter(|offset| *offset < SIZE)
    }

    /// Allocates a block in the arena, unless it does not fit.
    fn place(&self, layout: Layout) -> Option<*mut u8> {
        let end = |used: usize| {
            let begin = used.checked_next_multiple_of(layout.align())?;
            begin.checked_add(layout.size()).filter(|end| *end <= SIZE)
        };
        if layout.align() > align_of::<Bytes>() {
            return None;
        }
        // Acquire: the last stores of the thread that gave this memory back come before the first of the one that gets it.
        let used = self.used.fetch_update(Ordering::Acquire, Ordering::Relaxed, end).ok()?;
        // SAFETY: `end` has found room for it there.
        Some(unsafe { self.base().add(used.next_multiple_of(layout.align())) })
    }

    /// Moves the end of the last block; returns whether the block was the last, and fits.
    fn resize_last(&self, offset: usize, old: usize, new: usize) -> bool {
        let (from, to) = (offset + old, offset.saturating_add(new));
        // Release where the block shrinks, for the thread that gets the memory; Acquire where it grows, as in `place`.
        to <= SIZE && self.used.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Heap {
    pub const fn new() -> Heap {
        Heap { small: Arena::new(), large: Arena::new() }
    }

    fn place(&self, layout: Layout) -> Option<*mut u8> {
        if layout.size() < LARGE { self.small.place(layout) } else { self.large.place(layout) }
    }

    /// Returns the arena of a block, and where the block begins there; `None` if it is the system's.
    fn find(&self, block: *mut u8) -> Option<(&Arena, usize)> {
        [&self.small, &self.large].into_iter().find_map(|arena| Some((arena, arena.offset(block)?)))
    }
}

// SAFETY: blocks of the arenas do not overlap, are aligned, and stay where they are; the rest is the system's.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as our caller promises.
        self.place(layout).unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(block) = self.place(layout) else {
            // SAFETY: as our caller promises.
            return unsafe { System.alloc_zeroed(layout) };
        };
        // A block of an arena may have been used before.
        // SAFETY: the block has this size.
        unsafe { block.write_bytes(0, layout.size()) };
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.find(block) {
            Some((arena, offset)) => _ = arena.resize_last(offset, layout.size(), 0),
            // SAFETY: it is the system's.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some((arena, offset)) = self.find(block) else {
            // SAFETY: it is the system's.
            return unsafe { System.realloc(block, layout, size) };
        };
        if size <= layout.size() || arena.resize_last(offset, layout.size(), size) {
            return block;
        }
        // SAFETY: our caller promises that the size is valid with this alignment.
        let moved = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !moved.is_null() {
            // SAFETY: both are blocks of at least this size, and do not overlap.
            unsafe { moved.copy_from_nonoverlapping(block, layout.size()) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn blocks_are_aligned_and_do_not_overlap() {
        let heap = Heap::new();
        let mut blocks = Vec::new();
        for (size, align) in [(1, 1), (8, 8), (3, 1), (64, 64), (0, 1), (5, 4), (100, 16)] {
            // SAFETY: the block is used within its layout.
            let block = unsafe { heap.alloc(layout(size, align)) };
            assert_eq!(block as usize % align, 0);
            blocks.push((block as usize, size));
        }
        assert!(blocks.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{blocks:?}");
    }

    #[test]
    fn only_the_last_block_grows_where_it_is_and_gives_its_room_back() {
        let heap = Heap::new();
        // SAFETY: each block is used with the layout that it was allocated with.
        unsafe {
            let first = heap.alloc(layout(16, 8));
            first.write_bytes(7, 16);
            assert_eq!(heap.realloc(first, layout(16, 8), 32), first);
            let second = heap.alloc(layout(16, 8));
            let moved = heap.realloc(first, layout(32, 8), 64);
            assert!(moved > second && *moved.add(15) == 7);
            heap.dealloc(moved, layout(64, 8));
            let zeroed = heap.alloc_zeroed(layout(64, 8));
            assert!(zeroed == moved && *zeroed.add(15) == 0);
        }
    }

    #[test]
    fn what_does_not_fit_is_the_systems() {
        let heap = Heap::new();
        // SAFETY: each block is used with the layout that it was allocated with.
        unsafe {
            let all = layout(SIZE - 8, 8);
            let first = heap.alloc(all);
            let second = heap.alloc(layout(LARGE, 8));
            assert!(heap.find(first).is_some() && heap.find(second).is_none());
            let larger = heap.realloc(second, layout(LARGE, 8), LARGE + 100);
            assert!(heap.find(larger).is_none());
            heap.dealloc(larger, layout(LARGE + 100, 8));
            let moved = heap.realloc(first, all, SIZE + 8);
            assert!(heap.find(moved).is_none());
            heap.dealloc(moved, layout(SIZE + 8, 8));
            let odd = heap.alloc(layout(1, 256));
            assert!(heap.find(odd).is_none(), "the arena is not aligned so");
            heap.dealloc(odd, layout(1, 256));
        }
    }

    #[test]
    fn a_large_block_grows_where_it_is_though_small_ones_come_after_it() {
        let heap = Heap::new();
        // SAFETY: each block is used with the layout that it was allocated with.
        unsafe {
            let large = heap.alloc(layout(LARGE, 8));
            heap.alloc(layout(16, 8));
            assert_eq!(heap.realloc(large, layout(LARGE, 8), 4 * LARGE), large);
        }
    }
}
