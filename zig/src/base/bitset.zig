//! A set of small integers as bits of 64-bit words, little-endian: the form in which filters meet searches.
const std = @import("std");
const assert = std.debug.assert;

pub const BitSet = struct {
    words: []u64,
    /// Members are below this. Bits at and above it in the last word are zero.
    len: usize,

    pub fn words_for(len: usize) usize {
        return (len + 63) / 64;
    }

    /// An empty set.
    pub fn init(alloc: std.mem.Allocator, len: usize) std.mem.Allocator.Error!BitSet {
        const words = try alloc.alloc(u64, words_for(len));
        @memset(words, 0);
        return .{ .words = words, .len = len };
    }

    pub fn deinit(self: *BitSet, alloc: std.mem.Allocator) void {
        alloc.free(self.words);
        self.* = undefined;
    }

    /// A set over words that it does not own.
    pub fn over(words: []u64, len: usize) BitSet {
        assert(words.len == words_for(len));
        return .{ .words = words, .len = len };
    }

    pub inline fn contains(self: *const BitSet, i: usize) bool {
        assert(i < self.len);
        return (self.words[i / 64] >> @intCast(i % 64)) & 1 == 1;
    }

    pub inline fn insert(self: *BitSet, i: usize) void {
        assert(i < self.len);
        self.words[i / 64] |= @as(u64, 1) << @intCast(i % 64);
    }

    pub inline fn remove(self: *BitSet, i: usize) void {
        assert(i < self.len);
        self.words[i / 64] &= ~(@as(u64, 1) << @intCast(i % 64));
    }

    /// Inserts and says whether it was missing: the test of a traversal.
    pub inline fn insert_new(self: *BitSet, i: usize) bool {
        assert(i < self.len);
        const word = &self.words[i / 64];
        const bit = @as(u64, 1) << @intCast(i % 64);
        const missing = word.* & bit == 0;
        word.* |= bit;
        return missing;
    }

    pub fn clear(self: *BitSet) void {
        @memset(self.words, 0);
    }

    pub fn fill(self: *BitSet) void {
        @memset(self.words, ~@as(u64, 0));
        self.trim();
    }

    pub fn intersect(self: *BitSet, other: *const BitSet) void {
        assert(self.len == other.len);
        for (self.words, other.words) |*word, o| word.* &= o;
    }

    pub fn count(self: *const BitSet) usize {
        var total: usize = 0;
        for (self.words) |word| total += @popCount(word);
        return total;
    }

    /// The first place from `start` on that is a member, or with `member` false that is none; `len` or beyond: there is none.
    pub fn next(self: *const BitSet, start: usize, member: bool) usize {
        var at = start / 64;
        if (at >= self.words.len) return self.len;
        const flip: u64 = if (member) 0 else ~@as(u64, 0);
        var word = (self.words[at] ^ flip) & (~@as(u64, 0) << @intCast(start % 64));
        while (word == 0) {
            at += 1;
            if (at == self.words.len) return self.len;
            word = self.words[at] ^ flip;
        }
        return @min(self.len, at * 64 + @ctz(word));
    }

    /// Members that are not below `first`.
    pub fn count_from(self: *const BitSet, first: usize) usize {
        if (first >= self.len) return 0;
        var total: usize = @popCount(self.words[first / 64] >> @intCast(first % 64));
        for (self.words[first / 64 + 1 ..]) |word| total += @popCount(word);
        return total;
    }

    fn trim(self: *BitSet) void {
        if (self.len % 64 != 0) self.words[self.words.len - 1] &= (@as(u64, 1) << @intCast(self.len % 64)) - 1;
    }

    pub fn iterator(self: *const BitSet) Iterator {
        return .{ .words = self.words, .word = if (self.words.len > 0) self.words[0] else 0 };
    }

    /// The members, ascending.
    pub const Iterator = struct {
        words: []const u64,
        index: usize = 0,
        word: u64,

        pub fn next(self: *Iterator) ?usize {
            while (self.word == 0) {
                self.index += 1;
                if (self.index >= self.words.len) {
                    self.index = self.words.len; // stays exhausted
                    return null;
                }
                self.word = self.words[self.index];
            }
            const bit = @ctz(self.word);
            self.word &= self.word - 1;
            return self.index * 64 + bit;
        }
    };
};

test "a bit set agrees with an array of booleans" {
    const Prng = @import("prng.zig").Prng;
    const alloc = std.testing.allocator;
    for ([_]usize{ 0, 1, 63, 64, 65, 1000 }) |len| {
        var prng = Prng.init(len);
        var set = try BitSet.init(alloc, len);
        defer set.deinit(alloc);
        const model = try alloc.alloc(bool, len);
        defer alloc.free(model);
        @memset(model, false);
        for (0..len * 2) |_| {
            const i: usize = @intCast(prng.below(len));
            switch (prng.below(3)) {
                0 => {
                    set.insert(i);
                    model[i] = true;
                },
                1 => {
                    set.remove(i);
                    model[i] = false;
                },
                else => {
                    try std.testing.expectEqual(!model[i], set.insert_new(i));
                    model[i] = true;
                },
            }
        }
        try expect_members(&set, model);
        var full = try BitSet.init(alloc, len);
        defer full.deinit(alloc);
        full.fill();
        try std.testing.expectEqual(len, full.count());
        full.intersect(&set);
        try expect_members(&full, model);
        set.clear();
        try std.testing.expectEqual(0, set.count());
    }
}

fn expect_members(set: *const BitSet, model: []const bool) !void {
    var it = set.iterator();
    var count: usize = 0;
    for (model, 0..) |member, i| {
        try std.testing.expectEqual(member, set.contains(i));
        if (!member) continue;
        count += 1;
        try std.testing.expectEqual(i, it.next().?);
    }
    try std.testing.expectEqual(null, it.next());
    try std.testing.expectEqual(null, it.next());
    try std.testing.expectEqual(count, set.count());
}

test "places of members and of others, and how many follow" {
    var words: [3]u64 = undefined;
    for ([_]usize{ 1, 63, 64, 65, 130, 191, 192 }) |len| {
        var set: BitSet = .over(words[0..BitSet.words_for(len)], len);
        var prng = @import("prng.zig").Prng.init(len);
        set.clear();
        for (0..len) |i| if (prng.below(3) == 0) set.insert(i);
        for (0..len + 1) |start| {
            var count: usize = 0;
            var places: [2]usize = .{ len, len };
            var i = len;
            while (i > start) {
                i -= 1;
                count += @intFromBool(set.contains(i));
                places[@intFromBool(set.contains(i))] = i;
            }
            try std.testing.expectEqual(count, set.count_from(start));
            try std.testing.expectEqual(places[1], set.next(start, true));
            try std.testing.expectEqual(places[0], set.next(start, false));
        }
    }
}
