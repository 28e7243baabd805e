//! The pages of a query: those that it has asked for, wants now and holds, and the records that they brought.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const burst_max = @import("parameters.zig").burst_max;
const lists = @import("list.zig");
const assert = std.debug.assert;

// ---- asked for ----
//
// Small, by open addressing.

pub const PageSet = struct {
    table: []u32,
    count: u32 = 0,

    const capacity = 1 << 14;
    const empty = std.math.maxInt(u32);

    pub fn init(allocator: std.mem.Allocator) error{OutOfMemory}!PageSet {
        const table = try base.alloc_untouched(allocator, u32, capacity);
        @memset(table[0..small_size], empty);
        return .{ .table = table };
    }

    pub fn deinit(self: *PageSet, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.table);
    }

    pub fn reset(self: *PageSet) void {
        if (self.count > 0) @memset(self.table[0..small_size], empty);
        self.count = 0;
    }

    // Few pages live in the first entries only, so that clearing stays cheap, and most sets never touch the others: there is one
    // for every query that may run in every segment.
    fn used_size(self: *const PageSet) usize {
        return if (self.count <= small_max) small_size else self.table.len;
    }
    pub fn touched_bytes(self: *const PageSet) usize {
        return self.used_size() * @sizeOf(u32);
    }

    const small_size = 512;
    const small_max = 256;

    fn start_of(page: u32, size: usize) usize {
        return ((page *% 0x9e3779b1) >> 16) & (size - 1);
    }

    fn find(self: *const PageSet, page: u32, size: usize) usize {
        var at = start_of(page, size);
        while (self.table[at] != empty and self.table[at] != page) at = (at + 1) & (size - 1);
        return at;
    }

    /// Takes a page out again: those behind it in its run move up.
    pub fn remove(self: *PageSet, page: u32) void {
        const size = self.used_size();
        var hole = self.find(page, size);
        if (self.table[hole] != page) return;
        var at = hole;
        while (true) {
            at = (at + 1) & (size - 1);
            const moved = self.table[at];
            if (moved == empty) break;
            const home = start_of(moved, size);
            // It may move into the hole unless its own place lies between the two.
            if ((at -% home) & (size - 1) >= (at -% hole) & (size - 1)) {
                self.table[hole] = moved;
                hole = at;
            }
        }
        self.table[hole] = empty;
        // The count only says how far the table is cleared; it stays.
    }

    pub fn contains(self: *const PageSet, page: u32) bool {
        return self.table[self.find(page, self.used_size())] == page;
    }

    /// True when the page was not there; false also when the set is full, so that nothing is read without end.
    pub fn insert(self: *PageSet, page: u32) bool {
        const at = self.find(page, self.used_size());
        if (self.table[at] == page) return false;
        if (self.count == capacity / 2) return false;
        if (self.count == small_max) {
            var pages: [small_max]u32 = undefined;
            var found: usize = 0;
            for (self.table[0..small_size]) |*slot| {
                if (slot.* == empty) continue;
                pages[found] = slot.*;
                found += 1;
                slot.* = empty;
            }
            @memset(self.table[small_size..], empty);
            self.count += 1;
            for (pages[0..found]) |old| self.table[self.find(old, self.table.len)] = old;
            self.table[self.find(page, self.table.len)] = page;
            return true;
        }
        self.table[at] = page;
        self.count += 1;
        return true;
    }
};

// ---- wanted now ----

pub const Round = struct {
    pages: [burst_max]u32 = undefined,
    count: u32 = 0,
    /// pages[next..count] are still to be asked for.
    next: u32 = 0,
    /// Pages that were wanted and have not arrived, of steps before as well.
    awaited: u32 = 0,

    pub fn reset(self: *Round) void {
        self.count = 0;
        self.next = 0;
        self.awaited = 0;
    }

    /// A new step: all that the one before wanted was asked for.
    pub fn begin(self: *Round) void {
        assert(self.is_asked());
        self.count = 0;
        self.next = 0;
    }

    pub fn add(self: *Round, page: u32) void {
        assert(self.next == 0);
        self.pages[self.count] = page;
        self.count += 1;
        self.awaited += 1;
    }

    pub fn contains(self: *const Round, page: u32) bool {
        return std.mem.indexOfScalar(u32, self.pages[0..self.count], page) != null;
    }

    pub fn is_asked(self: *const Round) bool {
        return self.next == self.count;
    }

    /// The page to ask for next; it stays so until `advance`.
    pub fn upcoming(self: *const Round) ?u32 {
        return if (self.is_asked()) null else self.pages[self.next];
    }

    pub fn advance(self: *Round) void {
        assert(!self.is_asked());
        self.next += 1;
    }

    pub fn arrive(self: *Round) void {
        assert(self.awaited > 0);
        self.awaited -= 1;
    }
};

// ---- records that wait ----
//
// Records that pages of this round brought and that may enter the list. They wait for the end of the round, so that an
// answer does not depend on the order in which pages arrive.

pub const Pending = struct {
    /// The search's room; what does not fit is given up.
    items: []lists.Found,
    len: u32 = 0,

    pub const max = burst_max * layout.page.records_max;

    pub inline fn add(self: *Pending, vertex: u32, distance: f32) void {
        if (self.len == self.items.len) return;
        self.items[self.len] = .{ .distance = distance, .vertex = vertex };
        self.len += 1;
    }

    /// All of them by vertex, until the next one is added.
    pub fn take(self: *Pending) []const lists.Found {
        const items = self.items[0..self.len];
        self.len = 0;
        if (items.len > 1) std.mem.sortUnstable(lists.Found, items, {}, struct {
            fn less(_: void, a: lists.Found, b: lists.Found) bool {
                return a.vertex < b.vertex;
            }
        }.less);
        return items;
    }
};

// ---- held ----
//
// With links on disk a query holds pages for as long as it may follow their links; the oldest go first. A page stays in the
// buffer that it was read into.

pub const Page = struct { number: u32, buffer: u32, view: layout.page.View };

pub const RecentPages = struct {
    /// The search's room.
    slots: []Page,
    count: u32 = 0,
    oldest: u32 = 0,

    /// Pages at hand at most, of all segments together.
    pub const max = 64;

    pub fn slice(self: *const RecentPages) []const Page {
        return self.slots[0..self.count];
    }

    pub fn find(self: *const RecentPages, number: u32) ?u32 {
        for (self.slice(), 0..) |*page, place| {
            if (page.number == number) return @intCast(place);
        }
        return null;
    }

    /// Returns the page whose place it took.
    pub fn add(self: *RecentPages, page: Page) ?Page {
        if (self.count < self.slots.len) {
            self.slots[self.count] = page;
            self.count += 1;
            return null;
        }
        const place = &self.slots[self.oldest];
        self.oldest = (self.oldest + 1) % @as(u32, @intCast(self.slots.len));
        const warm_start = place.*;
        place.* = page;
        return warm_start;
    }
};

/// Buffers of pages that a query needs no more; the worker takes them after each step and at the end.
pub const Released = struct {
    buffers: [RecentPages.max]u32 = undefined,
    count: u32 = 0,

    pub fn add(self: *Released, buffer: u32) void {
        self.buffers[self.count] = buffer;
        self.count += 1;
    }

    /// They stand until the next one is added.
    pub fn take(self: *Released) []const u32 {
        defer self.count = 0;
        return self.buffers[0..self.count];
    }
};

test "a page set agrees with a map, small and large" {
    var set = try PageSet.init(std.testing.allocator);
    defer set.deinit(std.testing.allocator);
    var prng = std.Random.DefaultPrng.init(std.testing.random_seed);
    for ([_]u32{ 10, 255, 256, 257, 3000, 5 }) |count| {
        set.reset();
        var model: std.AutoHashMapUnmanaged(u32, void) = .empty;
        defer model.deinit(std.testing.allocator);
        for (0..count) |_| {
            const page = prng.random().uintLessThan(u32, 5000);
            const new = !(try model.getOrPut(std.testing.allocator, page)).found_existing;
            try std.testing.expectEqual(!new, set.contains(page));
            try std.testing.expectEqual(new, set.insert(page));
            try std.testing.expect(set.contains(page));
        }
    }
}

test "what was wanted is asked for in order, and arrives in any" {
    var round: Round = .{};
    round.begin();
    for ([_]u32{ 7, 3, 9 }) |page| round.add(page);
    try std.testing.expect(round.contains(3) and !round.contains(4));
    for ([_]u32{ 7, 3, 9 }) |page| {
        try std.testing.expectEqual(page, round.upcoming());
        round.advance();
    }
    try std.testing.expectEqual(null, round.upcoming());
    round.arrive();
    round.begin();
    round.add(7);
    try std.testing.expectEqual(3, round.awaited);
    try std.testing.expect(!round.contains(3));
}

test "what is pending comes by vertex, and no more than has room" {
    var room: [3]lists.Found = undefined;
    var pending: Pending = .{ .items = &room };
    try std.testing.expectEqual(0, pending.take().len);
    for ([_]u32{ 9, 2, 5, 1 }) |vertex| pending.add(vertex, 1);
    const taken = pending.take();
    try std.testing.expectEqual(3, taken.len);
    for (taken, [_]u32{ 2, 5, 9 }) |found, vertex| try std.testing.expectEqual(vertex, found.vertex);
    try std.testing.expectEqual(0, pending.take().len);
}

test "recent pages agree with a queue" {
    var room: [3]Page = undefined;
    var recent: RecentPages = .{ .slots = &room };
    var view: layout.page.View = undefined;
    view.record_count = 0;
    for (0..3) |i| try std.testing.expectEqual(null, recent.add(.{ .number = @intCast(10 + i), .buffer = @intCast(i), .view = view }));
    for (0..4) |i| {
        const warm_start = recent.add(.{ .number = @intCast(13 + i), .buffer = @intCast(i % 3), .view = view }).?;
        try std.testing.expectEqual(10 + i, warm_start.number);
        try std.testing.expectEqual(i % 3, warm_start.buffer);
    }
    try std.testing.expectEqual(null, recent.find(13));
    for (14..17) |number| try std.testing.expect(recent.find(@intCast(number)) != null);
    var released: Released = .{};
    released.add(4);
    released.add(2);
    try std.testing.expectEqualSlices(u32, &.{ 4, 2 }, released.take());
    try std.testing.expectEqual(0, released.take().len);
}
