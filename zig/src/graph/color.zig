//! Affinity colors: records of a page that lie close together, so that a cache may keep them together.
const std = @import("std");
const base = @import("base");

const Placement = @import("placement.zig").Placement;

/// The largest squared distance at which two vectors are affine: a percentile (the 5th by default) of the squared
/// distances to a cluster's centroid, averaged over clusters. Clusters are those of randomly drawn centers over a sample; a point is
/// on average twice as far, squared, from a random member as from the centroid, hence the half.
pub fn affinity_threshold(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, n: u32, percent: u32, seed: u64) error{OutOfMemory}!f32 {
    const centers_max = 64;
    const sample_max = 8192;
    const members_min = 20;
    std.debug.assert(percent < 100);
    if (n < 2) return 0;
    var prng = base.Prng.init(seed).split(0x6166_6669);
    var centers: [centers_max]u32 = undefined;
    const center_count = @min(centers_max, @max(n / members_min, 1));
    for (centers[0..center_count]) |*center| center.* = @intCast(prng.below(n));

    const Member = struct {
        center: u32,
        distance: f32,

        fn less(_: void, a: @This(), b: @This()) bool {
            return if (a.center != b.center) a.center < b.center else a.distance < b.distance;
        }
    };
    var members: std.ArrayList(Member) = try .initCapacity(allocator, @min(n, sample_max));
    defer members.deinit(allocator);
    var out: [centers_max]f32 = undefined;
    for (0..members.capacity) |i| {
        const vertex: u32 = if (n <= sample_max) @intCast(i) else @intCast(prng.below(n));
        if (std.mem.indexOfScalar(u32, centers[0..center_count], vertex) != null) continue;
        distances.distances(vertex, centers[0..center_count], out[0..center_count]);
        const nearest = std.mem.indexOfMin(f32, out[0..center_count]);
        members.appendAssumeCapacity(.{ .center = @intCast(nearest), .distance = out[nearest] });
        if (members.items.len == members.capacity) break;
    }
    std.sort.pdq(Member, members.items, {}, Member.less);
    var sum: f64 = 0;
    var clusters: f64 = 0;
    var at: usize = 0;
    while (at < members.items.len) {
        var end = at;
        while (end < members.items.len and members.items[end].center == members.items[at].center) end += 1;
        if (end - at >= members_min or end - at == members.items.len) {
            sum += members.items[at + (end - at) * percent / 100].distance;
            clusters += 1;
        }
        at = end;
    }
    return if (clusters == 0) 0 else @floatCast(sum / clusters / 2);
}

/// The color of every record, by new id. On a page, the first record without a color takes every other one within
/// `threshold` of it into a set of its own color, 1, 2, … 255, 1, …; a record alone has color 0.
pub fn color(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, placement: *const Placement, threshold: f32) error{OutOfMemory}![]u8 {
    const colors = try base.alloc_untouched(allocator, u8, placement.order.len);
    errdefer base.free_untouched(allocator, colors);
    @memset(colors, 0);
    var out: [256]f32 = undefined;
    for (0..placement.page_first.len) |index| {
        const page = placement.page(index);
        var latest: u8 = 0;
        for (page.from..page.to) |leader| {
            if (colors[leader] != 0) continue;
            const next: u8 = if (latest == 255) 1 else latest + 1;
            var used = false;
            var from = leader + 1;
            while (from < page.to) : (from += out.len) {
                const to = @min(from + out.len, page.to);
                distances.distances(placement.order[leader], placement.order[from..to], out[0 .. to - from]);
                for (colors[from..to], out[0 .. to - from]) |*tag, d| {
                    if (tag.* != 0 or d > threshold) continue;
                    tag.* = next;
                    used = true;
                }
            }
            if (used) {
                colors[leader] = next;
                latest = next;
            }
        }
    }
    return colors;
}
