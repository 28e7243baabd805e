//! Where searches start.
const std = @import("std");
const base = @import("base");

const sample_max = 1024;

/// Of a seeded sample the vertex with the smallest sum of distances to the sample.
pub fn medoid(comptime Distances: type, distances: *const Distances, n: u32, seed: u64) u32 {
    var prng = base.Prng.init(seed).split(0x6d65_646f);
    var sample: [sample_max]u32 = undefined;
    var out: [sample_max]f32 = undefined;
    const count = @min(n, sample_max);
    for (sample[0..count], 0..) |*id, i| id.* = if (n <= sample_max) @intCast(i) else @intCast(prng.below(n));
    var best = sample[0];
    var best_sum = std.math.inf(f64);
    for (sample[0..count]) |id| {
        distances.distances(id, sample[0..count], out[0..count]);
        var sum: f64 = 0;
        for (out[0..count]) |d| sum += d;
        if (sum < best_sum) {
            best_sum = sum;
            best = id;
        }
    }
    return best;
}

/// `count` distinct vertices (all of them if there are fewer), drawn evenly: one at random from each of `count` equal
/// ranges of ids, ascending. In placement order ranges of ids are regions of space, so the draw covers it.
pub fn entry_points(allocator: std.mem.Allocator, n: u32, count: u32, seed: u64) error{OutOfMemory}![]u32 {
    const wanted = @min(n, count);
    const points = try allocator.alloc(u32, wanted);
    var prng = base.Prng.init(seed).split(0x656e_7472);
    for (points, 0..) |*point, i| {
        const from = @as(u64, n) * i / wanted;
        const to = @as(u64, n) * (i + 1) / wanted;
        point.* = @intCast(from + prng.below(to - from));
    }
    return points;
}

/// As many entry points as a search can afford to look at: 2,000 at a million vertices, growing with the square root.
pub fn entry_count(n: u32) u32 {
    return @min(n, std.math.sqrt(@as(u64, n) * 4));
}
