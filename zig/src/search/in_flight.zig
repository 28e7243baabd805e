//! The pages that a worker's reads are bringing, and which of its queries wait for each: one read serves them all.
//! Nothing here can run out: a page has a buffer for as long as it is on its way, and a buffer a bit for every slot.
const std = @import("std");
const base = @import("base");
const assert = std.debug.assert;

pub const InFlight = struct {
    /// Which buffer a page is being read into, by open addressing.
    table: []Entry,
    /// A bit a slot, `words` of them a buffer.
    waiting: []u64,
    words: u32,

    const Entry = struct { page: u64, buffer: u32 };
    const empty = std.math.maxInt(u64);

    /// A page of one of the files of a part, as the calls below name it.
    pub fn name_of(part: u31, file: u1, page: u32) u64 {
        return @as(u64, part) << 33 | @as(u64, file) << 32 | page;
    }

    pub fn init(allocator: std.mem.Allocator, buffer_count: u32, slot_count: u32) error{OutOfMemory}!InFlight {
        const words = std.math.divCeil(u32, slot_count, 64) catch unreachable;
        const table = try base.alloc_untouched(allocator, Entry, std.math.ceilPowerOfTwoAssert(usize, 2 * @as(usize, buffer_count)));
        errdefer base.free_untouched(allocator, table);
        @memset(table, .{ .page = empty, .buffer = 0 });
        const waiting = try base.alloc_untouched(allocator, u64, @as(usize, buffer_count) * words);
        @memset(waiting, 0);
        return .{ .table = table, .waiting = waiting, .words = words };
    }

    pub fn deinit(self: *InFlight, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.table);
        base.free_untouched(allocator, self.waiting);
    }

    pub fn memory_bytes(self: *const InFlight) u64 {
        return self.table.len * @sizeOf(Entry) + self.waiting.len * 8;
    }

    /// The buffer that this page is on its way to.
    pub fn find(self: *const InFlight, page: u64) ?u32 {
        const entry = self.table[self.place_of(page)];
        return if (entry.page == page) entry.buffer else null;
    }

    pub fn insert(self: *InFlight, page: u64, buffer: u32) void {
        const place = self.place_of(page);
        assert(self.table[place].page == empty);
        self.table[place] = .{ .page = page, .buffer = buffer };
    }

    /// The read into this buffer is over. (Another of the same page may be under way: one that is not shared.)
    pub fn remove(self: *InFlight, page: u64, buffer: u32) void {
        const mask = self.table.len - 1;
        var hole = self.place_of(page);
        if (self.table[hole].page != page or self.table[hole].buffer != buffer) return;
        // Those behind it in its run move up, unless their own place lies between the hole and where they are.
        var at = hole;
        while (true) {
            at = (at + 1) & mask;
            const moved = self.table[at];
            if (moved.page == empty) break;
            if ((at -% self.home_of(moved.page)) & mask >= (at -% hole) & mask) {
                self.table[hole] = moved;
                hole = at;
            }
        }
        self.table[hole].page = empty;
    }

    pub fn wait(self: *InFlight, buffer: u32, slot: u32) void {
        assert(!self.waits(buffer, slot));
        self.waiting_for(buffer)[slot / 64] |= bit(slot);
    }

    pub fn leave(self: *InFlight, buffer: u32, slot: u32) void {
        assert(self.waits(buffer, slot));
        self.waiting_for(buffer)[slot / 64] &= ~bit(slot);
    }

    pub fn waits(self: *const InFlight, buffer: u32, slot: u32) bool {
        return self.waiting_for(buffer)[slot / 64] & bit(slot) != 0;
    }

    /// The first slot, counted from `from`, that waits for this buffer.
    pub fn next_waiting(self: *const InFlight, buffer: u32, from: u32) ?u32 {
        const words = self.waiting_for(buffer);
        var word = from / 64;
        if (word >= words.len) return null;
        var bits = words[word] & ~(bit(from) - 1);
        while (bits == 0) {
            word += 1;
            if (word == words.len) return null;
            bits = words[word];
        }
        return word * 64 + @ctz(bits);
    }

    fn waiting_for(self: *const InFlight, buffer: u32) []u64 {
        return self.waiting[@as(usize, buffer) * self.words ..][0..self.words];
    }

    fn bit(slot: u32) u64 {
        return @as(u64, 1) << @intCast(slot % 64);
    }

    fn home_of(self: *const InFlight, page: u64) usize {
        return @intCast((page *% 0x9e3779b97f4a7c15 >> 40) & (self.table.len - 1));
    }

    /// Where the page stands, or would.
    fn place_of(self: *const InFlight, page: u64) usize {
        var at = self.home_of(page);
        while (self.table[at].page != empty and self.table[at].page != page) at = (at + 1) & (self.table.len - 1);
        return at;
    }
};

test "pages on their way agree with a map, and their waiters with sets" {
    const buffer_count = 24;
    const slot_count = 130;
    var in_flight = try InFlight.init(std.testing.allocator, buffer_count, slot_count);
    defer in_flight.deinit(std.testing.allocator);
    var prng = std.Random.DefaultPrng.init(std.testing.random_seed);
    errdefer std.debug.print("seed={d}\n", .{std.testing.random_seed});
    const random = prng.random();
    var pages: [buffer_count]?u64 = @splat(null);
    var waiters: [buffer_count]std.StaticBitSet(slot_count) = @splat(.initEmpty());
    for (0..20_000) |_| {
        const buffer = random.uintLessThan(u32, buffer_count);
        const page = InFlight.name_of(random.uintLessThan(u31, 2), random.int(u1), random.uintLessThan(u32, 10));
        const known: ?u32 = for (pages, 0..) |own, i| {
            if (own == page) break @intCast(i);
        } else null;
        try std.testing.expectEqual(known, in_flight.find(page));
        if (pages[buffer]) |own| {
            if (random.uintLessThan(u32, 4) == 0) {
                in_flight.remove(own, buffer);
                pages[buffer] = null;
            } else in_flight.remove(own, (buffer + 1) % buffer_count); // another buffer's: nothing happens
        } else if (known == null) {
            in_flight.insert(page, buffer);
            pages[buffer] = page;
        }
        const slot = random.uintLessThan(u32, slot_count);
        const set = &waiters[buffer];
        try std.testing.expectEqual(set.isSet(slot), in_flight.waits(buffer, slot));
        if (set.isSet(slot)) in_flight.leave(buffer, slot) else in_flight.wait(buffer, slot);
        set.toggle(slot);
        var expected = set.iterator(.{});
        var from: u32 = 0;
        while (in_flight.next_waiting(buffer, from)) |found| : (from = found + 1) try std.testing.expectEqual(expected.next(), found);
        try std.testing.expectEqual(null, expected.next());
    }
}
