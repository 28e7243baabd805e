//! The rows of one value, ascending: as bits where they are many, else by the method of Elias and Fano, which takes
//! about 2 + log2(n / count) bits a row and finds the i-th row without unpacking those before it.
//!
//! A row is cut into `low_width` low bits, which lie side by side, and a high part, which is counted in unary: row i
//! sets bit (row >> low_width) + i of the high bits. `skips` has the position of every 256th of those.
//!
//! Everything is laid out in words of 64 bits, and how many follows from n and count alone: a reader computes it and
//! needs no bounds in the file.
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");

/// At this share of all rows, 1 / 16, bits are quicker to use and hardly larger.
pub const bits_share = 16;
const skip_step = 256;

pub const Shape = struct {
    n: u32,
    count: u32,
    is_bits: bool,
    low_width: u5,
    skip_words: usize,
    low_words: usize,
    high_words: usize,

    pub fn of(n: u32, count: u32) Shape {
        assert(count <= n);
        const is_bits = count > 0 and @as(u64, count) * bits_share >= n;
        if (is_bits or count == 0) return .{
            .n = n,
            .count = count,
            .is_bits = is_bits,
            .low_width = 0,
            .skip_words = 0,
            .low_words = 0,
            .high_words = if (is_bits) base.BitSet.words_for(n) else 0,
        };
        const low_width: u5 = @intCast(std.math.log2_int(u32, n / count));
        const skips = (count - 1) / skip_step; // entry 0 needs none
        return .{
            .n = n,
            .count = count,
            .is_bits = false,
            .low_width = low_width,
            .skip_words = (skips + 1) / 2,
            .low_words = (@as(u64, count) * low_width + 63) / 64,
            .high_words = (@as(u64, count) + (n >> low_width) + 1 + 63) / 64,
        };
    }

    pub fn words(self: *const Shape) usize {
        return self.skip_words + self.low_words + self.high_words;
    }
};

/// Writes ascending, distinct `rows` into `out`, which has the words that the shape says and holds zeros.
pub fn encode(n: u32, rows: []const u32, out: []u64) void {
    const shape = Shape.of(n, @intCast(rows.len));
    assert(out.len == shape.words());
    if (shape.is_bits) {
        for (rows) |row| out[row / 64] |= @as(u64, 1) << @intCast(row % 64);
        return;
    }
    const skips: []u32 = std.mem.bytesAsSlice(u32, std.mem.sliceAsBytes(out[0..shape.skip_words]));
    const low = out[shape.skip_words..][0..shape.low_words];
    const high = out[shape.skip_words + shape.low_words ..];
    const width: u6 = shape.low_width;
    for (rows, 0..) |row, i| {
        const at = (row >> shape.low_width) + i;
        high[at / 64] |= @as(u64, 1) << @intCast(at % 64);
        if (i > 0 and i % skip_step == 0) skips[i / skip_step - 1] = @intCast(at);
        if (width > 0) put(low, i * width, width, row & ((@as(u32, 1) << shape.low_width) - 1));
    }
}

/// Sets `width` bits at bit `at` of zeroed words.
pub fn put(words: []u64, at: usize, width: u6, value: u64) void {
    const shift: u6 = @intCast(at % 64);
    words[at / 64] |= value << shift;
    if (@as(u32, shift) + width > 64) words[at / 64 + 1] |= value >> @intCast(64 - @as(u32, shift));
}

/// `width` bits at bit `at`; touches no word that holds none of them.
pub inline fn get(words: [*]const u64, at: usize, width: u6) u64 {
    if (width == 0) return 0;
    const shift: u6 = @intCast(at % 64);
    var value = words[at / 64] >> shift;
    if (@as(u32, shift) + width > 64) value |= words[at / 64 + 1] << @intCast(64 - @as(u32, shift));
    return value & ((@as(u64, 1) << width) - 1);
}

/// A posting where it lies. Damaged words give wrong rows, but none at or above n.
pub const Posting = struct {
    shape: Shape,
    words: []const u64,

    pub fn init(n: u32, count: u32, words: []const u64) Posting {
        const shape = Shape.of(n, count);
        assert(words.len == shape.words());
        return .{ .shape = shape, .words = words };
    }

    pub fn iterator(self: *const Posting) Iterator {
        const high = self.words[self.shape.skip_words + self.shape.low_words ..];
        return .{
            .shape = &self.shape,
            .low = self.words[self.shape.skip_words..].ptr,
            .high = high,
            .word = if (high.len > 0) high[0] else 0,
        };
    }

    /// The i-th row; for bits something near it: the first set row of the i-th of `count` equal parts, or after it.
    pub fn select(self: *const Posting, i: u32) u32 {
        assert(i < self.shape.count);
        const shape = &self.shape;
        if (shape.is_bits) {
            var at: usize = @intCast(@as(u64, i) * shape.n / shape.count);
            for (0..self.words.len + 1) |_| {
                const word = self.words[at / 64] >> @intCast(at % 64);
                if (word != 0) return @intCast(@min(at + @ctz(word), shape.n - 1));
                at = at / 64 * 64 + 64;
                if (at >= self.words.len * 64) at = 0;
            }
            return 0;
        }
        const skips: []const u32 = std.mem.bytesAsSlice(u32, std.mem.sliceAsBytes(self.words[0..shape.skip_words]));
        const high = self.words[shape.skip_words + shape.low_words ..];
        var left = i % skip_step;
        const start: usize = if (i < skip_step) 0 else skips[i / skip_step - 1];
        var w = start / 64;
        if (w >= high.len) return shape.n - 1; // only where it is damaged
        var word = high[w] & (~@as(u64, 0) << @intCast(start % 64));
        while (left >= @popCount(word)) {
            left -= @popCount(word);
            w += 1;
            if (w >= high.len) return shape.n - 1;
            word = high[w];
        }
        for (0..left) |_| word &= word - 1;
        return self.row_at(i, w * 64 + @ctz(word));
    }

    inline fn row_at(self: *const Posting, i: u32, position: usize) u32 {
        return row_of(&self.shape, self.words[self.shape.skip_words..].ptr, i, position);
    }
};

inline fn row_of(shape: *const Shape, low: [*]const u64, i: u32, position: usize) u32 {
    const low_bits = get(low, @as(usize, i) * shape.low_width, shape.low_width);
    const row = ((position -| i) << shape.low_width) | low_bits;
    return @intCast(@min(row, shape.n - 1));
}

pub const Iterator = struct {
    shape: *const Shape,
    low: [*]const u64,
    high: []const u64,
    word: u64,
    at: usize = 0,
    done: u32 = 0,

    pub inline fn next(self: *Iterator) ?u32 {
        if (self.done >= self.shape.count) return null;
        while (self.word == 0) {
            self.at += 1;
            if (self.at >= self.high.len) return null;
            self.word = self.high[self.at];
        }
        const position = self.at * 64 + @ctz(self.word);
        self.word &= self.word - 1;
        const i = self.done;
        self.done += 1;
        if (self.shape.is_bits) return @intCast(@min(position, self.shape.n - 1));
        return row_of(self.shape, self.low, i, position);
    }
};

fn order(a: u32, b: u32) std.math.Order {
    return std.math.order(a, b);
}

test "rows come back, in order and by number, at every density" {
    const alloc = std.testing.allocator;
    var prng = base.Prng.init(41);
    for ([_]u32{ 1, 2, 63, 64, 65, 1000, 70_000 }) |n| for ([_]u32{ 1, 2, 3, 10, 17, 100, 5000 }) |one_in| {
        var rows: std.ArrayList(u32) = .empty;
        defer rows.deinit(alloc);
        for (0..n) |row| if (prng.below(one_in) == 0) try rows.append(alloc, @intCast(row));
        const shape = Shape.of(n, @intCast(rows.items.len));
        const words = try alloc.alloc(u64, shape.words());
        defer alloc.free(words);
        @memset(words, 0);
        encode(n, rows.items, words);
        const posting = Posting.init(n, shape.count, words);
        var it = posting.iterator();
        for (rows.items, 0..) |row, i| {
            try std.testing.expectEqual(row, it.next().?);
            const selected = posting.select(@intCast(i));
            if (shape.is_bits) {
                try std.testing.expect(std.sort.binarySearch(u32, rows.items, selected, order) != null);
            } else try std.testing.expectEqual(row, selected);
        }
        try std.testing.expectEqual(null, it.next());
        if (!shape.is_bits and shape.count > 8) { // within the promised size, but for the last words of three parts
            const per_row = 3.125 + @log2(@as(f64, @floatFromInt(n)) / @as(f64, @floatFromInt(shape.count)));
            try std.testing.expect(@as(f64, @floatFromInt(words.len * 64)) <= per_row * @as(f64, @floatFromInt(shape.count)) + 200);
        }
    };
}

test "damaged words give rows below n and end" {
    const alloc = std.testing.allocator;
    var prng = base.Prng.init(42);
    for (0..300) |_| {
        const n: u32 = @intCast(1 + prng.below(3000));
        const count: u32 = @intCast(1 + prng.below(n));
        const words = try alloc.alloc(u64, Shape.of(n, count).words());
        defer alloc.free(words);
        for (words) |*word| word.* = prng.next() & prng.next();
        const posting = Posting.init(n, count, words);
        var it = posting.iterator();
        var seen: u32 = 0;
        while (it.next()) |row| : (seen += 1) try std.testing.expect(row < n);
        try std.testing.expect(seen <= count);
        for (0..20) |_| try std.testing.expect(posting.select(@intCast(prng.below(count))) < n);
    }
}
