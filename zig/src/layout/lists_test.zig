//! Properties of both codecs of neighbor lists: that of links.bin (adjacency.zig) and that of pages (page_lists.zig).
const std = @import("std");
const adjacency = @import("adjacency.zig");
const page_lists = @import("page_lists.zig");
const neighbors_max = adjacency.neighbors_max;

const codecs = .{ adjacency.Codec, page_lists.Codec };

/// That of pages is made for lists of one greatest length, and a vertex is no neighbor of itself there.
fn statistics_of(comptime Codec: type, longest: u32) Codec.Statistics {
    return if (Codec == page_lists.Codec) .init(longest) else .{};
}

/// Up to `out.len` distinct ids below n, ascending; half of them near `vertex`.
fn random_list(comptime Codec: type, random: std.Random, vertex: u32, n: u32, out: []u32) []u32 {
    var count: usize = 0;
    for (0..out.len) |_| {
        const id = if (random.boolean()) @min(n - 1, vertex -| 64 + random.uintLessThan(u32, 128)) else random.uintLessThan(u32, n);
        if (Codec == page_lists.Codec and id == vertex) continue;
        if (std.mem.indexOfScalar(u32, out[0..count], id) != null) continue;
        out[count] = id;
        count += 1;
    }
    std.mem.sort(u32, out[0..count], {}, std.sort.asc(u32));
    return out[0..count];
}

test "lists of every length survive a round trip, and the size is what encoded_bytes says" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const random = prng.random();
    inline for (codecs) |Codec| for ([_]u32{ 1, 2, 17, 1000, 1_000_000, 1 << 31 }) |n| {
        const longest: u32 = if (n == 1000 and Codec == page_lists.Codec) 48 else neighbors_max;
        var statistics = statistics_of(Codec, longest);
        var buffer: [neighbors_max]u32 = undefined;
        for (0..200) |_| {
            const vertex = random.uintLessThan(u32, n);
            statistics.count(vertex, random_list(Codec, random, vertex, n, buffer[0..@min(48, n)]));
        }
        const trained = Codec.train(&statistics);
        var stored: [Codec.stored_bytes]u8 = undefined;
        trained.store(&stored);
        const codec = try Codec.load(&stored);
        for (0..500) |_| {
            const vertex = random.uintLessThan(u32, n);
            const ids = random_list(Codec, random, vertex, n, buffer[0..random.uintAtMost(u32, @min(n, longest))]);
            var bytes: [2048]u8 = @splat(0xa5);
            const length = codec.encode(vertex, ids, &bytes);
            try std.testing.expectEqual(codec.encoded_bytes(vertex, ids), length);
            var out: [neighbors_max]u32 = undefined;
            try std.testing.expectEqualSlices(u32, ids, try codec.decode(vertex, &bytes, length, n, &out));
        }
    };
}

test "random bytes never decode to an id outside the index, nor to ids out of order" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const random = prng.random();
    inline for (codecs) |Codec| {
        var statistics = statistics_of(Codec, 64);
        statistics.count(5, &.{ 1, 2, 9, 700 });
        const codec = Codec.train(&statistics);
        for (0..20_000) |_| {
            var bytes: [128 + adjacency.over_read_bytes]u8 = undefined;
            random.bytes(&bytes);
            var out: [64]u32 = undefined;
            const n = random.uintAtMost(u32, 5000) + 1;
            const ids = codec.decode(random.uintLessThan(u32, n), &bytes, random.uintAtMost(u32, 128), n, &out) catch continue;
            for (ids, 0..) |id, i| {
                try std.testing.expect(id < n);
                try std.testing.expect(i == 0 or ids[i - 1] < id);
            }
        }
    }
}
