//! live.page: what the processes that have a folder open tell each other, in memory that all of them map.
//!
//! It says which changes searches may show, and wakes those who wait for the folder's lock. It is a hint: manifest and log alone
//! decide what is written, and a folder whose page was deleted loses nothing.
const std = @import("std");
const Atomic = std.atomic.Value;

pub const file_name = "live.page";
pub const file_bytes = 4096;
/// The last byte is the version.
const magic = std.mem.readInt(u64, "VELOPAG\x01", .little);

/// Fields are only ever appended. Sequences are those of the log; they only grow while the boot is the same.
pub const Page = extern struct {
    magic: Atomic(u64),
    /// Of the system that wrote it: after a power failure all else is as old as the device's cache pleased.
    boot: [16]u8,
    /// Grows whenever something becomes visible, or the manifest changes.
    changes: Atomic(u64),
    /// Of the last manifest whose writer finished. Another one than that of live.json: its writer was killed, and it is unknown
    /// whether the rename is on the device.
    generation: Atomic(u64),
    /// Of the last change whose writer finished its call.
    sequence: Atomic(u64),
    /// Of the last change that must be on the device before it is shown.
    sync_wanted: Atomic(u64),
    /// All changes up to this one are on the device.
    synced: Atomic(u64),
    /// Searches show changes up to this one.
    visible: Atomic(u64),
    /// The generation whose log failed to sync; 0: none.
    broken: Atomic(u64),
    /// The process that has the folder's lock, or had it last.
    holder: Atomic(u32),
    /// Processes that wait for it, and a number that changes when they should try again.
    waiters: Atomic(u32),
    unlocks: Atomic(u32),

    /// False: it is new, of another version, or of a system that is gone.
    pub fn is_valid(self: *const Page, boot: [16]u8) bool {
        return self.magic.load(.acquire) == magic and std.mem.eql(u8, &self.boot, &boot) and !std.mem.allEqual(u8, &boot, 0);
    }

    /// As before the first manifest. `changes` goes on: readers compare it with a value that they saw.
    pub fn reset(self: *Page, boot: [16]u8) void {
        self.magic.store(0, .release);
        self.boot = boot;
        for ([_]*Atomic(u64){ &self.generation, &self.sequence, &self.sync_wanted, &self.synced, &self.visible, &self.broken }) |field| field.store(0, .release);
        self.waiters.store(0, .release);
        _ = self.changes.fetchAdd(1, .acq_rel);
        self.magic.store(magic, .release);
    }

    /// A change that a call is done with, with the lock held.
    pub fn append(self: *Page, sequence: u64, waits_for_sync: bool) void {
        // In this order: who sees the sequence sees that a sync is wanted.
        if (waits_for_sync) self.sync_wanted.store(sequence, .release);
        self.sequence.store(sequence, .release);
        if (!waits_for_sync and self.sync_wanted.load(.acquire) <= self.synced.load(.acquire)) self.show(sequence);
    }

    /// A manifest that holds all changes, with the lock held.
    pub fn commit(self: *Page, generation: u64, sequence: u64) void {
        self.sequence.store(sequence, .release);
        _ = self.synced.fetchMax(sequence, .acq_rel);
        _ = self.visible.fetchMax(sequence, .acq_rel);
        self.generation.store(generation, .release);
        _ = self.changes.fetchAdd(1, .acq_rel);
    }

    /// Until the next manifest everybody looks at the folder itself.
    pub fn forget(self: *Page) void {
        self.generation.store(0, .release);
        _ = self.changes.fetchAdd(1, .acq_rel);
    }

    /// All changes up to this one are on the device now.
    pub fn sync(self: *Page, sequence: u64) void {
        const synced = @max(sequence, self.synced.fetchMax(sequence, .acq_rel));
        const last = self.sequence.load(.acquire); // before what is wanted of it
        self.show(if (self.sync_wanted.load(.acquire) <= synced) @max(last, synced) else synced);
    }

    fn show(self: *Page, sequence: u64) void {
        if (self.visible.fetchMax(sequence, .acq_rel) < sequence) _ = self.changes.fetchAdd(1, .acq_rel);
    }

    /// At the end of a wait, during which the count may have begun anew.
    pub fn stop_waiting(self: *Page) void {
        var count = self.waiters.load(.acquire);
        while (count > 0) count = self.waiters.cmpxchgWeak(count, count - 1, .acq_rel, .acquire) orelse return;
    }

    /// A mapping that others only read may not be written: atomic loads alone.
    pub fn is_visible(self: *const Page, sequence: u64) bool {
        return self.visible.load(.acquire) >= sequence;
    }
};

comptime {
    std.debug.assert(@sizeOf(Page) <= file_bytes and @offsetOf(Page, "changes") % 8 == 0);
}

test "a change is shown once all that must be on the device before it is there" {
    var page: Page = std.mem.zeroes(Page);
    const boot: [16]u8 = @splat(7);
    try std.testing.expect(!page.is_valid(boot));
    page.reset(boot);
    try std.testing.expect(page.is_valid(boot));
    try std.testing.expect(!page.is_valid(@splat(8)));
    page.commit(1, 5);
    page.append(6, false);
    try std.testing.expectEqual(6, page.visible.load(.monotonic));
    page.append(7, true);
    page.append(8, false);
    try std.testing.expectEqual(6, page.visible.load(.monotonic));
    page.append(9, true);
    page.sync(7);
    try std.testing.expectEqual(7, page.visible.load(.monotonic));
    const changes = page.changes.load(.monotonic);
    page.append(10, false);
    page.sync(6);
    try std.testing.expectEqual(changes, page.changes.load(.monotonic));
    page.sync(9);
    try std.testing.expectEqual(10, page.visible.load(.monotonic));
    try std.testing.expectEqual(changes + 1, page.changes.load(.monotonic));
}
