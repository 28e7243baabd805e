//! Seeded randomness: the same seed gives the same numbers on every machine.
const std = @import("std");
const assert = std.debug.assert;

/// xoshiro256++ seeded through splitmix64. A plain value: copy it to repeat a sequence.
pub const Prng = struct {
    source: std.Random.Xoshiro256,

    pub fn init(seed: u64) Prng {
        return .{ .source = .init(seed) };
    }

    /// A generator of its own for part `stream` of the work (a thread, a vertex): it depends on where this one stands
    /// and on `stream`, not on how many numbers other parts draw. Does not advance this one.
    pub fn split(self: *const Prng, stream: u64) Prng {
        var copy = self.source;
        const here = copy.next();
        var mix = std.Random.SplitMix64.init(stream);
        return .init(here ^ mix.next());
    }

    pub fn next(self: *Prng) u64 {
        return self.source.next();
    }

    /// Uniform in [0, n), without bias (Lemire's multiplication with rejection).
    pub fn below(self: *Prng, n: u64) u64 {
        assert(n > 0);
        var product = @as(u128, self.next()) * n;
        if (@as(u64, @truncate(product)) < n) {
            const threshold = (0 -% n) % n;
            while (@as(u64, @truncate(product)) < threshold) product = @as(u128, self.next()) * n;
        }
        return @intCast(product >> 64);
    }

    /// Uniform in [0, 1), a multiple of 2^-24.
    pub fn float(self: *Prng) f32 {
        return @as(f32, @floatFromInt(self.next() >> 40)) * 0x1p-24;
    }

    pub fn boolean(self: *Prng) bool {
        return self.next() >> 63 == 1;
    }

    /// Standard normal (Box-Muller; one of the two values is dropped, so that a copy holds the whole state).
    pub fn gaussian(self: *Prng) f32 {
        const u: f64 = @as(f64, @floatFromInt((self.next() >> 11) + 1)) * 0x1p-53; // (0, 1]
        const v: f64 = @as(f64, @floatFromInt(self.next() >> 11)) * 0x1p-53;
        return @floatCast(@sqrt(-2 * @log(u)) * @cos(2 * std.math.pi * v));
    }

    pub fn shuffle(self: *Prng, comptime T: type, items: []T) void {
        var i = items.len;
        while (i > 1) : (i -= 1) std.mem.swap(T, &items[i - 1], &items[@intCast(self.below(i))]);
    }
};

test "the same seed repeats, another differs, split does not depend on draws of other streams" {
    var a = Prng.init(7);
    var b = Prng.init(7);
    var c = Prng.init(8);
    const parent = a;
    for (0..100) |_| try std.testing.expectEqual(a.next(), b.next());
    try std.testing.expect(a.next() != c.next());
    var first = parent.split(3);
    var again = parent.split(3);
    var other = parent.split(4);
    const x = first.next();
    try std.testing.expectEqual(x, again.next());
    try std.testing.expect(x != other.next());
}

test "below is uniform and inside its bound; float and gaussian have the moments they should" {
    var prng = Prng.init(11);
    var counts = [_]u32{0} ** 7;
    for (0..70_000) |_| counts[@intCast(prng.below(7))] += 1;
    for (counts) |count| try std.testing.expect(count > 9_500 and count < 10_500); // 5 sigma is 460
    try std.testing.expectEqual(0, prng.below(1));
    for (0..1000) |_| try std.testing.expect(prng.below((1 << 63) + 1) <= 1 << 63);
    var sum: f64 = 0;
    var sum2: f64 = 0;
    var uniform: f64 = 0;
    const draws = 100_000;
    for (0..draws) |_| {
        const g: f64 = prng.gaussian();
        try std.testing.expect(std.math.isFinite(g));
        sum += g;
        sum2 += g * g;
        const f = prng.float();
        try std.testing.expect(f >= 0 and f < 1);
        uniform += f;
    }
    try std.testing.expectApproxEqAbs(0, sum / draws, 0.02);
    try std.testing.expectApproxEqAbs(1, sum2 / draws, 0.03);
    try std.testing.expectApproxEqAbs(0.5, uniform / draws, 0.006);
}

test "shuffle permutes" {
    var prng = Prng.init(5);
    var items: [50]u32 = undefined;
    for (&items, 0..) |*item, i| item.* = @intCast(i);
    prng.shuffle(u32, &items);
    var seen = [_]bool{false} ** 50;
    var moved: u32 = 0;
    for (items, 0..) |item, i| {
        try std.testing.expect(!seen[item]);
        seen[item] = true;
        moved += @intFromBool(item != i);
    }
    try std.testing.expect(moved > 30);
}
