//! Kernels on the host against the definition of estimates, and against a search in plain loops.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const graph = @import("graph");
const layout = @import("layout.zig");
const host = @import("host.zig");
const driver = @import("driver.zig");
const fake = @import("fake.zig");
const Linker = @import("linker.zig").Linker;
const worlds = @import("testing.zig");
const testing = std.testing;
const Segment = worlds.Segment;
const Queries = worlds.Queries;
const Plain = worlds.Plain;

/// `n` lists of up to `degree` different vertices, and a ring, so that every vertex is reached.
fn random_lists(arena: std.mem.Allocator, prng: *base.Prng, n: u32, degree: u32) ![]const []const u32 {
    const lists = try arena.alloc([]const u32, n);
    for (lists, 0..) |*list, vertex| {
        const own = try arena.alloc(u32, @min(n - 1, 1 + prng.below(degree)));
        var len: usize = 0;
        while (len < own.len) {
            const id: u32 = if (len == 0) @intCast((vertex + 1) % n) else @intCast(prng.below(n));
            if (id == vertex or std.mem.indexOfScalar(u32, own[0..len], id) != null) continue;
            own[len] = id;
            len += 1;
        }
        list.* = own;
    }
    return lists;
}

fn random_vectors(arena: std.mem.Allocator, prng: *base.Prng, count: usize) ![]f32 {
    const vectors = try arena.alloc(f32, count);
    for (vectors) |*value| value.* = prng.gaussian();
    return vectors;
}

fn by_definition(query: *const quant.Query, codes: *const quant.Codes, vertex: u32) f32 {
    const terms: quant.EstimateTerms = .{
        .centers = codes.center_ids.ptr,
        .query_terms = &query.terms,
        .scale = 2 * query.coarse_step,
        .bias = query.coarse_bias,
    };
    var out: [1]f32 = undefined;
    quant.definition.estimate_gather(query.coarse.ptr, codes.params.dim, codes.params.memory_bits, codes.bytes.ptr, codes.factors.ptr, &.{vertex}, 1, 0, &terms, &out);
    return out[0];
}

test "estimates of kernels are those of the definition" {
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    var cases: u32 = 0;
    for ([_]u32{ 16, 32, 48, 80, 96, 128, 208, 256, 272, 400, 768, 1040 }) |dim| for (1..layout.bits_max + 1) |bits| {
        errdefer std.debug.print("dim {d}, bits {d}\n", .{ dim, bits });
        var arena_state = std.heap.ArenaAllocator.init(testing.allocator);
        defer arena_state.deinit();
        const arena = arena_state.allocator();
        const n: u32 = @intCast(40 + prng.below(120));
        const form: quant.Form = if (prng.boolean()) .distance else .product;
        const codes = try worlds.random_codes(arena, &prng, .{ .dim = dim, .memory_bits = @intCast(bits), .record_bits = 4 }, n, @intCast(1 + prng.below(9)), form);
        const entries = try arena.dupe(u32, &.{@as(u32, @intCast(prng.below(n)))});
        const segment: Segment = try .init(arena, codes, try random_lists(arena, &prng, n, 16), 0, entries);
        const queries: Queries = try .init(arena, &segment, try random_vectors(arena, &prng, 2 * dim), n, 256);
        // All vertices fit into the list, so all are met.
        host.velo_search(segment.index(), queries.batch(256), queries.shared);
        try queries.expect_written();
        for (queries.prepared, 0..) |*query, number| {
            try testing.expectEqual(n, queries.counters[number].len);
            for (queries.list(number)) |candidate| {
                try testing.expectEqual(by_definition(query, &codes, candidate.vertex()), candidate.distance());
                cases += 1;
            }
        }
    };
    try testing.expect(cases >= 10_000);
}

test "the list is that of a search in plain loops" {
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    var queries_run: u32 = 0;
    for (0..24) |run| {
        errdefer std.debug.print("run {d}\n", .{run});
        var arena_state = std.heap.ArenaAllocator.init(testing.allocator);
        defer arena_state.deinit();
        const arena = arena_state.allocator();
        const dim = 16 * @as(u32, @intCast(1 + prng.below(6)));
        const bits: u8 = @intCast(1 + prng.below(layout.bits_max));
        const n: u32 = @intCast(300 + prng.below(1500));
        const degree = ([_]u32{ 3, 7, 13, 16, 30, 32, 48, 96 })[run % 8];
        const form: quant.Form = if (prng.boolean()) .distance else .product;
        const centers: u32 = @intCast(1 + prng.below(200));
        const codes = try worlds.random_codes(arena, &prng, .{ .dim = dim, .memory_bits = bits, .record_bits = 4 }, n, centers, form);
        var entries: std.ArrayList(u32) = .empty;
        for (0..n) |vertex| if (prng.below(4) == 0) try entries.append(arena, @intCast(vertex));
        const segment: Segment = try .init(arena, codes, try random_lists(arena, &prng, n, degree), @intCast(prng.below(n)), entries.items);
        const list_size: u32 = @intCast(1 + prng.below(([_]u64{ 20, 100, layout.list_size_max })[run % 3]));
        const slots: u32 = @as(u32, 256) << @intCast(prng.below(4));
        const count = ([_]u32{ 1, 31, 32, 33 })[run % 4];
        const queries: Queries = try .init(arena, &segment, try random_vectors(arena, &prng, count * dim), list_size, slots);
        var batch = queries.batch(slots);
        var stop: Plain.Stop = .{};
        if (form == .distance and prng.boolean()) {
            stop = .{ .k = @min(list_size, 10), .followed = @max(@min(list_size, 10), list_size / 4), .share = 1 + prng.float() / 2 };
            batch.stop_k = stop.k;
            batch.stop_followed = stop.followed;
            batch.stop_share = stop.share;
        }
        for (queries.heads) |*head| if (prng.boolean()) {
            head.excluded = @intCast(prng.below(n));
        };
        host.velo_search(segment.index(), batch, queries.shared);
        try queries.expect_written();
        for (queries.prepared, queries.heads, 0..) |*query, head, number| {
            errdefer std.debug.print("query {d} of {d}, list {d}, degree {d}\n", .{ number, count, list_size, degree });
            var plain: Plain = .{ .segment = &segment, .query = query, .excluded = head.excluded, .stop = stop, .together = @max(1, layout.lanes / segment.stride) };
            try plain.run(arena, list_size);
            const counters = queries.counters[number];
            try testing.expectEqual(plain.items.items.len, counters.len);
            for (plain.items.items, queries.list(number)[0..counters.len]) |expected, candidate| {
                try testing.expectEqual(expected.distance(), candidate.distance());
                try testing.expect(candidate.vertex() != head.excluded);
            }
            try testing.expectEqual(plain.expanded, counters.expanded);
            // A set that forgets asks again.
            try testing.expect(counters.estimates >= plain.estimates);
            queries_run += 1;
        }
    }
    try testing.expect(queries_run >= 24);
}

test "over a built graph a batch finds as much as a search that follows one vertex at a time, and asks for hardly more" {
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    var arena_state = std.heap.ArenaAllocator.init(testing.allocator);
    defer arena_state.deinit();
    const arena = arena_state.allocator();
    const n = 4000;
    const count = 200;
    const dim = 32;
    const k = 10;
    // Rows around points, so that centers matter.
    const points = try random_vectors(arena, &prng, 40 * dim);
    const rows = try random_vectors(arena, &prng, (n + count) * dim);
    for (0..n + count) |i| {
        const point = points[prng.below(40) * dim ..][0..dim];
        for (rows[i * dim ..][0..dim], point) |*value, at| value.* = at + 0.7 * value.*;
    }
    const stored = rows[0 .. n * dim];
    const vectors = rows[n * dim ..];
    var build_codes = try coded(arena, dim, stored);
    defer build_codes.deinit();
    var built = try graph.build(quant.BuildCodes, testing.allocator, &build_codes, .{ .degree = 16, .list_size = 60, .seed = seed });
    defer built.deinit(testing.allocator);
    const lists = try arena.alloc([]const u32, n);
    for (lists, 0..) |*list, vertex| list.* = built.list(@intCast(vertex));

    var all = [2]u32{ 0, 0 };
    for ([_]u8{ 2, 4 }) |bits| for ([_]bool{ false, true }) |stops| {
        const codes = try worlds.encoded(arena, .{ .dim = dim, .memory_bits = bits, .record_bits = 4 }, stored, .distance);
        const entries = try graph.entry_points(arena, n, graph.entry_count(n), seed);
        const segment: Segment = try .init(arena, codes, lists, built.entry, entries);
        const list_size = 64;
        const slots = layout.visited_slots_of(list_size);
        const queries: Queries = try .init(arena, &segment, vectors, list_size, slots);
        var batch = queries.batch(slots);
        const stop: Plain.Stop = if (stops) .{ .k = k, .followed = list_size / 4, .share = 1.2 } else .{};
        if (stops) {
            batch.stop_k = stop.k;
            batch.stop_followed = stop.followed;
            batch.stop_share = stop.share;
        }
        host.velo_search(segment.index(), batch, queries.shared);
        try queries.expect_written();
        var found = [2]u32{ 0, 0 };
        var estimates = [2]u64{ 0, 0 };
        var expanded = [2]u64{ 0, 0 };
        for (queries.prepared, queries.counters[0..count], 0..) |*query, counters, number| {
            var truth: [k]u32 = undefined;
            nearest(stored, vectors[number * dim ..][0..dim], &truth);
            var plain: Plain = .{ .segment = &segment, .query = query, .excluded = layout.none, .stop = stop, .together = 1 };
            try plain.run(arena, list_size);
            for ([2][]const quant.Candidate{ queries.list(number)[0..counters.len], plain.items.items }, &found) |list, *sum| {
                for (list) |candidate| sum.* += @intFromBool(std.mem.indexOfScalar(u32, &truth, candidate.vertex()) != null);
            }
            estimates[0] += counters.estimates;
            estimates[1] += plain.estimates;
            expanded[0] += counters.expanded;
            expanded[1] += plain.expanded;
        }
        errdefer std.debug.print("bits {d}, stops {}: found {any} of {d}, estimates {any}, expanded {any}\n", .{ bits, stops, found, count * k, estimates, expanded });
        try testing.expect(found[0] >= count * k * 9 / 10);
        for (&all, found) |*sum, one| sum.* += one;
        try testing.expect(estimates[0] * 100 <= estimates[1] * 110);
        try testing.expect(expanded[0] * 100 <= expanded[1] * 110);
    };
    const missed = @as(f64, @floatFromInt(all[1])) - @as(f64, @floatFromInt(all[0]));
    errdefer std.debug.print("found {any}\n", .{all});
    try testing.expect(missed <= 0.002 * 4 * count * k);
}

test "vertices to be inserted follow what a walk on the host follows" {
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    for ([_]u32{ 16, 48, 128, 272 }) |dim| {
        errdefer std.debug.print("dim {d}\n", .{dim});
        var arena_state = std.heap.ArenaAllocator.init(testing.allocator);
        defer arena_state.deinit();
        const arena = arena_state.allocator();
        const n = 600;
        const count = 33;
        const list_size = 40;
        const degree = 24; // a warp follows one vertex a step then, as a walk on the host does
        var build_codes = try coded(arena, dim, try random_vectors(arena, &prng, n * dim));
        defer build_codes.deinit();
        var built = try graph.build(quant.BuildCodes, testing.allocator, &build_codes, .{ .degree = degree, .list_size = list_size, .seed = seed });
        defer built.deinit(testing.allocator);
        const stride = layout.link_stride_of(degree);
        const links = try arena.alloc(u32, n * stride);
        @memset(links, layout.none);
        for (0..n) |vertex| @memcpy(links[vertex * stride ..][0..built.degrees[vertex]], built.list(@intCast(vertex)));
        const followed_max = 4 * list_size;
        const guard = 8;
        const heads = try arena.alloc(layout.Query, count);
        for (heads) |*head| head.* = .{ .scale = 0, .bias = 0, .excluded = @intCast(prng.below(n)) };
        heads[0].excluded = built.entry; // there is nothing to follow
        const followed = try arena.alloc(i64, count * followed_max + guard);
        const counters = try arena.alloc(layout.Counters, count + 1);
        const slots = layout.visited_slots_of(list_size);
        const shared = try arena.alignedAlloc(u8, .@"16", layout.warp_bytes_of(list_size, slots));
        for ([_]bool{ false, true }) |product| {
            @memset(followed, Queries.poison);
            @memset(std.mem.sliceAsBytes(counters), 0x5a);
            host.velo_insert(insertion_index(&build_codes, links, stride, built.entry, product), insertion_batch(heads, followed, counters, list_size, followed_max), shared);
            for (followed[count * followed_max ..]) |key| try testing.expectEqual(Queries.poison, key);
            for (std.mem.asBytes(&counters[count])) |byte| try testing.expectEqual(0x5a, byte);
            try testing.expectEqual(0, counters[0].expanded);
            if (product) {
                try expect_same_walks(quant.ProductCodes, &.of(&build_codes), dim, &built, heads, counters, followed, list_size);
            } else try expect_same_walks(quant.BuildCodes, &build_codes, dim, &built, heads, counters, followed, list_size);
        }
    }
}

test "a graph whose walks a kernel makes in batches finds as much as one of walks one after another" {
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    var arena_state = std.heap.ArenaAllocator.init(testing.allocator);
    defer arena_state.deinit();
    const arena = arena_state.allocator();
    const n = 4000;
    const count = 200;
    const dim = 32;
    const k = 10;
    const rows = try random_vectors(arena, &prng, (n + count) * dim);
    const stored = rows[0 .. n * dim];
    const vectors = rows[n * dim ..];
    var build_codes = try coded(arena, dim, stored);
    defer build_codes.deinit();
    const codes = try worlds.encoded(arena, .{ .dim = dim, .memory_bits = 6, .record_bits = 2 }, stored, .distance);
    var found: [3]u32 = @splat(0);
    var expanded: [3]u64 = @splat(0);
    // By the CPU alone, by the GPU, and by one that is lost in the third batch.
    for ([_]?u32{ null, 0, 3 }, &found, &expanded) |lost_from, *sum, *followed| {
        const world = try fake.install(testing.allocator, .{ .kernels = &host.kernels, .lost_from = lost_from orelse 0, .function = "cuLaunchKernel" });
        defer fake.remove();
        var diagnostic: driver.Diagnostic = .{};
        var card: driver.Card = try .open(try .init(&fake.api, &diagnostic), 0, &diagnostic);
        try card.enter(&diagnostic);
        const module = try card.load_module("ptx", &diagnostic);
        var linker: Linker = try .init(testing.allocator, &card, module, .{ .degree = 24, .list_size = 60 }, n, dim, &diagnostic);
        const walks = if (lost_from == null) null else Linker.begin(&linker, &build_codes, false).?;
        var built = try graph.build(quant.BuildCodes, testing.allocator, &build_codes, .{ .degree = 24, .list_size = 60, .seed = seed, .walks = walks });
        defer built.deinit(testing.allocator);
        Linker.end(&linker);
        card.unload_module(module);
        card.leave();
        card.close();
        try testing.expect(world.is_empty());
        // The CPU makes 512 walks; then each batch is an eighth of the graph so far.
        const launches: u64 = if (lost_from) |lost| (if (lost > 0) lost - 1 else 18) else 0;
        try testing.expectEqual(launches, world.launches);
        try testing.expectEqual(launches, linker.batches);
        try testing.expectEqual(launches == 2, linker.is_off);
        try testing.expectEqual(n, try graph.reachable_count(testing.allocator, &built, built.degree_max));
        const lists = try arena.alloc([]const u32, n);
        for (lists, 0..) |*list, vertex| list.* = built.list(@intCast(vertex));
        const entries = try arena.dupe(u32, &.{built.entry});
        const segment: Segment = try .init(arena, codes, lists, built.entry, entries);
        const slots = layout.visited_slots_of(40);
        const queries: Queries = try .init(arena, &segment, vectors, 40, slots);
        host.velo_search(segment.index(), queries.batch(slots), queries.shared);
        for (0..count) |number| {
            var truth: [k]u32 = undefined;
            nearest(stored, vectors[number * dim ..][0..dim], &truth);
            for (queries.list(number)[0..queries.counters[number].len]) |candidate| sum.* += @intFromBool(std.mem.indexOfScalar(u32, &truth, candidate.vertex()) != null);
            followed.* += queries.counters[number].expanded;
        }
    }
    errdefer std.debug.print("found {any} of {d}, expanded {any}\n", .{ found, count * k, expanded });
    for (found[1..]) |other| try testing.expect(@as(f64, @floatFromInt(other)) >= @as(f64, @floatFromInt(found[0])) - 0.025 * count * k);
}

fn insertion_index(codes: *const quant.BuildCodes, links: []const u32, stride: u32, entry: u32, product: bool) layout.Index {
    return .{
        .codes = @intFromPtr(codes.codes.ptr),
        .factors = @intFromPtr(codes.factors.ptr),
        .links = @intFromPtr(links.ptr),
        .n = codes.n,
        .dim = codes.dim,
        .bits = quant.BuildCodes.bits,
        .code_stride = codes.dim,
        .link_stride = stride,
        .entry_vertex = entry,
        .product = @intFromBool(product),
    };
}

fn insertion_batch(heads: []const layout.Query, followed: []i64, counters: []layout.Counters, list_size: u32, followed_max: u32) layout.Batch {
    return .{
        .queries = @intFromPtr(heads.ptr),
        .counters = @intFromPtr(counters.ptr),
        .count = @intCast(heads.len),
        .list_size = list_size,
        .visited_slots = layout.visited_slots_of(list_size),
        .followed = @intFromPtr(followed.ptr),
        .followed_max = followed_max,
    };
}

/// Sums of several lanes may be rounded otherwise on some processors, so a few walks may differ.
fn expect_same_walks(comptime Distances: type, distances: *const Distances, dim: u32, built: *const graph.Graph, heads: []const layout.Query, counters: []const layout.Counters, followed: []const i64, list_size: u32) !void {
    const Source = struct {
        built: *const graph.Graph,

        pub fn copy(self: @This(), vertex: u32, _: []u32) []const u32 {
            return self.built.list(vertex);
        }
        pub fn hint(_: @This(), _: u32) void {}
    };
    var scratch: graph.search.Scratch(Distances) = try .init(testing.allocator, distances, list_size, built.degree_max);
    defer scratch.deinit(testing.allocator);
    // Norms are about the number of dimensions.
    const tolerance = 1e-5 * @as(f32, @floatFromInt(dim));
    var differ: u32 = 0;
    for (heads[1..], counters[1..heads.len], 1..) |head, own, number| {
        scratch.begin(distances, head.excluded, &.{built.entry});
        scratch.walk(distances, Source{ .built = built }, &.{});
        const expected = scratch.expanded[0..scratch.expanded_len];
        const found: []const quant.Candidate = @ptrCast(followed[number * 4 * list_size ..][0 .. 4 * list_size]);
        const same = own.expanded == expected.len and for (expected, found[0..expected.len]) |a, b| {
            if (!std.math.approxEqAbs(f32, a.distance(), b.distance(), tolerance)) break false;
        } else true;
        differ += @intFromBool(!same);
        for (found[0..own.expanded]) |candidate| {
            try testing.expect(!candidate.expanded() and candidate.vertex() != head.excluded);
            const distance = distances.distance(head.excluded, candidate.vertex());
            try testing.expectApproxEqAbs(distance, candidate.distance(), tolerance);
        }
        for (found[own.expanded..]) |candidate| try testing.expectEqual(Queries.poison, candidate.key);
    }
    try testing.expect(differ <= 1);
}

fn coded(arena: std.mem.Allocator, dim: u32, rows: []const f32) !quant.BuildCodes {
    const build_codes: quant.BuildCodes = try .init(@intCast(rows.len / dim), dim);
    var encoder: quant.Encoder = try .init(arena, quant.BuildCodes.params_of(dim));
    const scratch = try arena.alloc(u16, dim);
    var own = build_codes;
    for (0..own.n) |i| own.set(@intCast(i), &encoder, rows[i * dim ..][0..dim], scratch);
    return own;
}

/// The numbers of the rows nearest to a vector.
fn nearest(rows: []const f32, vector: []const f32, out: []u32) void {
    var best: [16]f32 = undefined;
    var len: usize = 0;
    for (0..rows.len / vector.len) |i| {
        var sum: f32 = 0;
        for (rows[i * vector.len ..][0..vector.len], vector) |x, y| sum += (x - y) * (x - y);
        if (len == out.len and sum >= best[len - 1]) continue;
        if (len < out.len) len += 1;
        var at = len - 1;
        while (at > 0 and best[at - 1] > sum) : (at -= 1) {
            best[at] = best[at - 1];
            out[at] = out[at - 1];
        }
        best[at] = sum;
        out[at] = @intCast(i);
    }
}
