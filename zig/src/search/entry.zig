//! Where a search of the graph begins: at the medoid, and at the best of the entry points near the query.
const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const quant = @import("quant");
const lists = @import("list.zig");
const on_disk = @import("on_disk.zig");
const shared_file = @import("shared.zig");
const Search = @import("search_state.zig").Search;

/// Entry points that a search starts at.
const best_max = 8;
const centers_looked_max = 64;

pub fn enter(search: *Search) void {
    const shared = search.shared;
    var centers: Centers = .init(shared.center_norms2, &search.query.terms);
    var looked: u32 = 0;
    var best: Best = .init(search.list.kernels);
    for (0..centers_looked_max) |_| {
        if (looked >= shared_file.entries_looked) break;
        const center = centers.next() orelse break;
        const at = shared.entry_starts[center];
        const end = shared.entry_starts[center + 1];
        looked += end - at;
        best.add(search, shared.entry_places[at..end]);
    }
    best.look(search);
    search.cost.estimates += looked;
    for (best.slice()) |candidate| search.meet(shared.entries[candidate.vertex()], candidate.distance());
    if (search.state == .disk) on_disk.look_around(search, best.slice());
    const medoid = [1]u32{shared.reader.header.entry_vertex};
    search.query.estimate(&shared.reader.codes, &medoid, search.distances[0..1]);
    search.meet(medoid[0], search.distances[0]);
}

/// The nearest entries, by their places. What is to be looked at gathers in the search's room, so that a kernel sees much at once.
const Best = struct {
    kernels: *const quant.Kernels,
    candidates: [best_max + quant.list_padding]lists.Candidate = @splat(.none),
    len: u32 = 0,
    waiting: u32 = 0,

    fn init(kernels: *const quant.Kernels) Best {
        return .{ .kernels = kernels };
    }

    fn add(best: *Best, search: *Search, places: []const u32) void {
        var rest = places;
        while (rest.len > 0) {
            const count: u32 = @intCast(@min(rest.len, Search.fresh_max - best.waiting));
            @memcpy(search.fresh[best.waiting..][0..count], rest[0..count]);
            best.waiting += count;
            rest = rest[count..];
            if (best.waiting == Search.fresh_max) best.look(search);
        }
    }

    fn look(best: *Best, search: *Search) void {
        const count = best.waiting;
        best.waiting = 0;
        search.query.estimate(&search.shared.entry_codes, search.fresh[0..count], search.distances[0..count]);
        var at: u32 = 0;
        while (at < count) : (at += together) {
            @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
            var inserted: quant.Inserted = undefined;
            best.kernels.insert_nearest(&best.candidates, best.len, best_max, std.math.inf(f32), search.fresh[at..].ptr, search.distances[at..].ptr, @min(together, count - at), &inserted);
            best.len = inserted.len;
        }
    }

    fn slice(best: *const Best) []const lists.Candidate {
        return best.candidates[0..best.len];
    }

    const together = quant.inserted_max;

    comptime {
        std.debug.assert(Search.fresh_max % together == 0);
    }
};

/// The centers by their distance to the query, which it was prepared with anyway; the nearest first, of equal ones the
/// first. A heap, since few of them are looked at and the order of the others does not matter.
const Centers = struct {
    /// The distance as a number of the same order, then the center.
    keys: [base.limits.centers_max]u64,
    len: u32,

    fn init(norms2: []const f32, terms: []const f32) Centers {
        var centers: Centers = .{ .keys = undefined, .len = @intCast(norms2.len) };
        for (norms2, terms[0..norms2.len], 0..) |norm2, term, center| {
            const bits: u32 = @bitCast(norm2 + term);
            const sign: u32 = 1 << 31;
            const rank = if (bits & sign == 0) bits | sign else ~bits;
            centers.keys[center] = @as(u64, rank) << 32 | center;
        }
        var place = centers.len / 2;
        while (place > 0) {
            place -= 1;
            centers.sink(place);
        }
        return centers;
    }

    fn next(centers: *Centers) ?u32 {
        if (centers.len == 0) return null;
        const center: u32 = @truncate(centers.keys[0]);
        centers.len -= 1;
        centers.keys[0] = centers.keys[centers.len];
        centers.sink(0);
        return center;
    }

    fn sink(centers: *Centers, from: u32) void {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const keys = &centers.keys;
        const key = keys[from];
        var place = from;
        while (2 * place + 1 < centers.len) {
            var child = 2 * place + 1;
            if (child + 1 < centers.len) child += @intFromBool(keys[child + 1] < keys[child]);
            if (key <= keys[child]) break;
            keys[place] = keys[child];
            place = child;
        }
        keys[place] = key;
    }
};

test "centers come by their distance, negative ones too, and of equal ones the first" {
    var prng = base.Prng.init(5);
    for ([_]usize{ 1, 2, 7, base.limits.centers_max }) |count| {
        var norms2: [base.limits.centers_max]f32 = undefined;
        var terms: [base.limits.centers_max]f32 = undefined;
        for (norms2[0..count], terms[0..count]) |*norm2, *term| {
            norm2.* = @floatFromInt(prng.below(20));
            term.* = -@as(f32, @floatFromInt(prng.below(20)));
        }
        var centers: Centers = .init(norms2[0..count], &terms);
        var last = centers.next().?;
        for (1..count) |_| {
            const center = centers.next().?;
            const before = norms2[last] + terms[last];
            const distance = norms2[center] + terms[center];
            try std.testing.expect(before < distance or (before == distance and last < center));
            last = center;
        }
        try std.testing.expectEqual(null, centers.next());
    }
}
