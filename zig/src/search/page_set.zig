//! The pages a query has asked for; small, by open addressing.
const std = @import("std");
const base = @import("base");

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
    // for every query that may run in every part.
    fn used_size(self: *const PageSet) usize {
        return if (self.count <= small_max) small_size else self.table.len;
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
