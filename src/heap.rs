//! The heap of a process that mostly lives for a millisecond: setting up an allocator, and freeing and reusing memory,
//! costs such a process more than the memory is worth.
//!
//! The first blocks come from an arena, by moving an offset, and are never given back. The system's allocator provides
//! everything that does not fit, as in a process that lives longer.
//!
//! Without it, an uncontended run costs 0.2 more of what flock(1) costs, by musl's allocator; by mimalloc, 0.8 more.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of the arena: more than a run without a wait needs. The kernel provides only the pages that are touched.
const SIZE: usize = 512 * 1024;

#[repr(C, align(64))]
pub struct Heap {
    bytes: UnsafeCell<[u8; SIZE]>,
    used: AtomicUsize,
}

// SAFETY: a byte of the arena belongs to one block, which `used` assigns to one caller, once.
unsafe impl Sync for Heap {}

impl Heap {
    pub const fn new() -> Heap {
        Heap { bytes: UnsafeCell::new([0; SIZE]), used: AtomicUsize::new(0) }
    }

    /// Allocates a block of zeros in the arena, unless it does not fit.
    fn place(&self, layout: Layout) -> Option<*mut u8> {
        if layout.align() > align_of::<Heap>() {
            return None;
        }
        let end = |used: usize| {
            let begin = used.checked_next_multiple_of(layout.align())?;
            begin.checked_add(layout.size()).filter(|end| *end <= SIZE)
        };
        let used = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end).ok()?;
        // SAFETY: `end` has found room for it there.
        Some(unsafe { self.bytes.get().cast::<u8>().add(used.next_multiple_of(layout.align())) })
    }

    /// Returns whether a block is in the arena: if not, it is the system's.
    fn has(&self, block: *mut u8) -> bool {
        (block as usize).checked_sub(self.bytes.get() as usize).is_some_and(|offset| offset < SIZE)
    }
}

// SAFETY: blocks of the arena do not overlap, are aligned, and stay where they are; the rest is the system's.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as our caller promises.
        self.place(layout).unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as our caller promises.
        self.place(layout).unwrap_or_else(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !self.has(block) {
            // SAFETY: it is the system's.
            unsafe { System.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.has(block) {
            // SAFETY: it is the system's.
            return unsafe { System.realloc(block, layout, size) };
        }
        if size <= layout.size() {
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
        let heap = Box::new(Heap::new());
        let mut blocks = Vec::new();
        for (size, align) in [(1, 1), (8, 8), (3, 1), (64, 64), (5, 4), (100, 16)] {
            // SAFETY: the block is used within its layout.
            let block = unsafe { heap.alloc(layout(size, align)) };
            assert_eq!(block as usize % align, 0);
            blocks.push((block as usize, size));
        }
        assert!(blocks.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{blocks:?}");
    }

    #[test]
    fn a_block_that_grows_keeps_its_bytes_and_one_that_was_freed_is_not_given_again() {
        let heap = Box::new(Heap::new());
        // SAFETY: each block is used with the layout that it was allocated with.
        unsafe {
            let first = heap.alloc(layout(16, 8));
            first.write_bytes(7, 16);
            assert_eq!(heap.realloc(first, layout(16, 8), 8), first);
            let moved = heap.realloc(first, layout(8, 8), 64);
            assert!(moved > first && *moved == 7 && *moved.add(7) == 7);
            moved.write_bytes(7, 64);
            heap.dealloc(moved, layout(64, 8));
            let zeroed = heap.alloc_zeroed(layout(64, 8));
            assert!(zeroed > moved && *zeroed == 0);
        }
    }

    #[test]
    fn what_does_not_fit_is_the_systems() {
        let heap = Box::new(Heap::new());
        // SAFETY: each block is used with the layout that it was allocated with.
        unsafe {
            let all = layout(SIZE - 8, 8);
            let first = heap.alloc(all);
            let second = heap.alloc(layout(16, 8));
            assert!(heap.has(first) && !heap.has(second));
            let larger = heap.realloc(second, layout(16, 8), 100);
            assert!(!heap.has(larger));
            heap.dealloc(larger, layout(100, 8));
            let moved = heap.realloc(first, all, SIZE + 8);
            assert!(!heap.has(moved));
            heap.dealloc(moved, layout(SIZE + 8, 8));
            let odd = heap.alloc(layout(1, 256));
            assert!(!heap.has(odd), "the arena is not aligned so");
            heap.dealloc(odd, layout(1, 256));
        }
    }
}
