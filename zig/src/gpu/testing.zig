//! Segments and batches in the host's memory, as kernels take them, and a search of one warp written out in plain loops.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const layout = @import("layout.zig");
const prepare = @import("prepare.zig");
const host = @import("host.zig");
const Candidate = quant.Candidate;

/// Codes with links, and the arrays of a `layout.Index` over them.
pub const Segment = struct {
    codes: quant.Codes,
    lists: []const []const u32,
    entry_vertex: u32,
    links: []u32,
    stride: u32,
    spread: []align(16) u8,
    entries: []u32,
    entry_starts: []u32,
    norms2: []f32,

    /// `links` of every vertex: different, and not the vertex itself.
    pub fn init(arena: std.mem.Allocator, codes: quant.Codes, lists: []const []const u32, entry_vertex: u32, entries: []u32) !Segment {
        const params = codes.params;
        const center_count = codes.centers.len / params.dim;
        var longest: u32 = 0;
        for (lists) |list| longest = @max(longest, @as(u32, @intCast(list.len)));
        const stride = layout.link_stride_of(longest);
        const links = try arena.alloc(u32, lists.len * stride);
        @memset(links, layout.none);
        for (lists, 0..) |list, vertex| @memcpy(links[vertex * stride ..][0..list.len], list);
        const spread = try arena.alignedAlloc(u8, .@"16", @as(usize, codes.n) * layout.code_stride_of(params.dim, params.memory_bits) + layout.code_padding);
        spread_codes(params.dim, params.memory_bits, codes.n, codes.bytes.ptr, spread);
        std.mem.sortUnstable(u32, entries, codes.center_ids, struct {
            fn less(centers: []const u8, a: u32, b: u32) bool {
                return if (centers[a] == centers[b]) a < b else centers[a] < centers[b];
            }
        }.less);
        const starts = try arena.alloc(u32, center_count + 1);
        const norms2 = try arena.alloc(f32, center_count);
        var place: u32 = 0;
        for (norms2, 0..) |*norm2, center| {
            starts[center] = place;
            while (place < entries.len and codes.center_ids[entries[place]] == center) place += 1;
            norm2.* = 0;
            if (codes.form == .product) continue;
            for (codes.centers[center * params.dim ..][0..params.dim]) |value| norm2.* += value * value;
        }
        starts[center_count] = place;
        return .{ .codes = codes, .lists = lists, .entry_vertex = entry_vertex, .links = links, .stride = stride, .spread = spread, .entries = entries, .entry_starts = starts, .norms2 = norms2 };
    }

    pub fn index(self: *const Segment) layout.Index {
        const params = self.codes.params;
        return .{
            .codes = @intFromPtr(self.spread.ptr),
            .factors = @intFromPtr(self.codes.factors.ptr),
            .center_ids = @intFromPtr(self.codes.center_ids.ptr),
            .links = @intFromPtr(self.links.ptr),
            .entries = @intFromPtr(self.entries.ptr),
            .entry_starts = @intFromPtr(self.entry_starts.ptr),
            .center_norms2 = @intFromPtr(self.norms2.ptr),
            .n = self.codes.n,
            .dim = params.dim,
            .bits = params.memory_bits,
            .code_stride = layout.code_stride_of(params.dim, params.memory_bits),
            .link_stride = self.stride,
            .center_count = @intCast(self.norms2.len),
            .entry_vertex = self.entry_vertex,
        };
    }
};

/// Copies packed codes to the stride that they have in device memory. `out` ends with `layout.code_padding` bytes, which are zeroed,
/// as are those between codes.
fn spread_codes(dim: u32, bits: u32, n: u32, packed_codes: [*]const u8, out: []u8) void {
    const from = dim / 8 * bits;
    const to = layout.code_stride_of(dim, bits);
    std.debug.assert(out.len == @as(usize, n) * to + layout.code_padding);
    for (0..n) |vertex| {
        const row = out[vertex * to ..][0..to];
        @memcpy(row[0..from], packed_codes[vertex * from ..][0..from]);
        @memset(row[from..], 0);
    }
    @memset(out[@as(usize, n) * to ..], 0);
}

/// Codes of random bytes, with factors and centers of plausible size.
pub fn random_codes(arena: std.mem.Allocator, prng: *base.Prng, params: quant.CodeParams, n: u32, center_count: u32, form: quant.Form) !quant.Codes {
    const bytes = try arena.alignedAlloc(u8, .@"64", quant.Codes.byte_len(params, n));
    for (bytes) |*byte| byte.* = @truncate(prng.next());
    const factors = try arena.alloc(u32, n);
    const center_ids = try arena.alloc(u8, n);
    for (factors, center_ids) |*factor, *center| {
        const offset = quant.PositiveFloat.encode(if (form == .product) 0 else 100 * prng.float());
        const f = quant.PositiveFloat.encode(0.1 + prng.float());
        factor.* = offset | @as(u32, f) << 16;
        center.* = @intCast(prng.below(center_count));
    }
    const centers = try arena.alloc(f32, center_count * params.dim);
    for (centers) |*value| value.* = prng.gaussian();
    return .{ .params = params, .n = n, .bytes = bytes, .factors = factors, .center_ids = center_ids, .centers = centers, .form = form, .norm2_per_f2 = 1, .tan_upper = 0.1, .tan_full = 0.1 };
}

/// Prepared queries in the arrays of a `layout.Batch`, and poisoned places for their results.
pub const Queries = struct {
    prepared: []quant.Query,
    heads: []layout.Query,
    planes: []align(16) u32,
    terms: []f32,
    candidates: []i64,
    counters: []layout.Counters,
    list_size: u32,
    shared: host.SharedMemory,

    /// Behind the output of a kernel.
    const guard = 16;
    pub const poison: i64 = 0x5a5a_5a5a_5a5a_5a5a;

    /// `vectors` are rotated ones, one after the other.
    pub fn init(arena: std.mem.Allocator, segment: *const Segment, vectors: []const f32, list_size: u32, visited_slots: u32) !Queries {
        const dim = segment.codes.params.dim;
        const count = vectors.len / dim;
        const words = layout.plane_words_of(dim);
        const self: Queries = .{
            .prepared = try arena.alloc(quant.Query, count),
            .heads = try arena.alloc(layout.Query, count),
            .planes = try arena.alignedAlloc(u32, .@"16", count * words),
            .terms = try arena.alloc(f32, count * segment.norms2.len),
            .candidates = try arena.alloc(i64, count * list_size + guard),
            .counters = try arena.alloc(layout.Counters, count + 1),
            .list_size = list_size,
            .shared = try arena.alignedAlloc(u8, .@"16", layout.warp_bytes_of(list_size, visited_slots)),
        };
        for (self.prepared, 0..) |*query, i| {
            query.* = try .init(arena, segment.codes.params);
            query.bind(&segment.codes);
            query.prepare(vectors[i * dim ..][0..dim]);
            prepare.write(query, layout.none, &self.heads[i], self.planes[i * words ..][0..words], self.terms[i * segment.norms2.len ..][0..segment.norms2.len]);
        }
        @memset(self.candidates, poison);
        @memset(std.mem.sliceAsBytes(self.counters), 0x5a);
        return self;
    }

    pub fn batch(self: *const Queries, visited_slots: u32) layout.Batch {
        return .{
            .queries = @intFromPtr(self.heads.ptr),
            .planes = @intFromPtr(self.planes.ptr),
            .terms = @intFromPtr(self.terms.ptr),
            .candidates = @intFromPtr(self.candidates.ptr),
            .counters = @intFromPtr(self.counters.ptr),
            .count = @intCast(self.heads.len),
            .list_size = self.list_size,
            .visited_slots = visited_slots,
        };
    }

    pub fn list(self: *const Queries, query: usize) []const Candidate {
        return @ptrCast(self.candidates[query * self.list_size ..][0..self.list_size]);
    }

    /// Nothing outside of a batch's places was written, and all of it was.
    pub fn expect_written(self: *const Queries) !void {
        for (self.candidates[self.heads.len * self.list_size ..]) |key| try std.testing.expectEqual(poison, key);
        for (std.mem.asBytes(&self.counters[self.heads.len])) |byte| try std.testing.expectEqual(0x5a, byte);
        for (0..self.heads.len) |query| {
            const len = self.counters[query].len;
            try std.testing.expect(len <= self.list_size);
            for (self.list(query), 0..) |candidate, place| try std.testing.expectEqual(place >= len, candidate.key == Candidate.none.key);
            for (self.list(query)[0..len -| 1], self.list(query)[@min(1, len)..len]) |a, b| try std.testing.expect(a.key | 1 < b.key);
        }
    }
};

/// The search of one query: as many vertices a step as one warp follows, and a set that forgets nothing.
pub const Plain = struct {
    segment: *const Segment,
    query: *const quant.Query,
    excluded: u32,
    stop: Stop,
    /// Vertices followed in one step, of one stretch of `layout.lanes` places.
    together: u32,
    items: std.ArrayList(Candidate) = .empty,
    met: std.AutoHashMapUnmanaged(u32, void) = .empty,
    expanded: u32 = 0,
    estimates: u32 = 0,

    pub const Stop = struct { k: u32 = 1, followed: u32 = layout.none, share: f32 = 1 };

    pub fn run(self: *Plain, arena: std.mem.Allocator, list_size: u32) !void {
        self.items.clearRetainingCapacity();
        self.met.clearRetainingCapacity();
        self.expanded = 0;
        self.estimates = 0;
        try self.enter(arena);
        self.items.shrinkRetainingCapacity(@min(self.items.items.len, list_size));
        for (self.items.items) |item| try self.met.put(arena, item.vertex(), {});
        const stop = self.stop;
        try self.offer(arena, self.segment.entry_vertex, list_size, stop);
        try self.met.put(arena, self.segment.entry_vertex, {});
        while (true) {
            const first = for (self.items.items, 0..) |item, place| {
                if (!item.expanded()) break place;
            } else break;
            var chosen: [layout.lanes]u32 = undefined;
            var count: u32 = 0;
            const far = self.reach(stop);
            const end = @min(self.items.items.len, (first / layout.lanes + 1) * layout.lanes);
            for (self.items.items[first..end]) |*item| {
                if (count == self.together) break;
                if (item.expanded() or item.distance() > far) continue;
                chosen[count] = item.vertex();
                count += 1;
                item.key |= 1;
            }
            if (count == 0) break;
            self.expanded += count;
            // Vertices that are met together are compared with the same bound.
            var links: [layout.lanes]u32 = undefined;
            var len: u32 = 0;
            for (chosen[0..count]) |vertex| for (self.segment.lists[vertex], 0..) |id, i| {
                if (i > 0 and i % layout.lanes == 0) {
                    try self.offer_many(arena, links[0..len], list_size, stop);
                    len = 0;
                }
                if (id == self.excluded or self.met.contains(id)) continue;
                try self.met.put(arena, id, {});
                links[len] = id;
                len += 1;
            };
            try self.offer_many(arena, links[0..len], list_size, stop);
        }
    }

    fn enter(self: *Plain, arena: std.mem.Allocator) !void {
        const segment = self.segment;
        var taken: [256]bool = @splat(false);
        var looked: u32 = 0;
        for (0..@min(layout.centers_looked_max, segment.norms2.len)) |_| {
            if (looked >= layout.entries_looked) break;
            var nearest: ?usize = null;
            for (segment.norms2, 0..) |norm2, center| {
                if (taken[center]) continue;
                if (nearest) |other| if (norm2 + self.query.terms[center] >= segment.norms2[other] + self.query.terms[other]) continue;
                nearest = center;
            }
            const center = nearest.?;
            taken[center] = true;
            for (segment.entries[segment.entry_starts[center]..segment.entry_starts[center + 1]]) |id| {
                looked += 1;
                try self.offer(arena, id, layout.entries_best, .{});
            }
        }
    }

    fn reach(self: *const Plain, stop: Stop) f32 {
        if (self.items.items.len < stop.followed) return std.math.inf(f32);
        return @max(self.items.items[stop.followed - 1].distance(), stop.share * self.items.items[stop.k - 1].distance());
    }

    fn offer_many(self: *Plain, arena: std.mem.Allocator, ids: []const u32, list_size: u32, stop: Stop) !void {
        const far = self.reach(stop);
        const full = self.items.items.len == list_size;
        const last = if (full) self.items.items[list_size - 1].distance() else std.math.inf(f32);
        for (ids) |id| {
            var distance: [1]f32 = undefined;
            self.query.estimate(&self.segment.codes, &.{id}, &distance);
            self.estimates += 1;
            if (id == self.excluded or !(distance[0] < @min(far, last))) continue;
            const newcomer: Candidate = .of(id, distance[0]);
            var at = self.items.items.len;
            while (at > 0 and self.items.items[at - 1].key > newcomer.key) at -= 1;
            if (at > 0 and self.items.items[at - 1].vertex() == id) continue;
            if (at < self.items.items.len and self.items.items[at].vertex() == id) continue;
            try self.items.insert(arena, at, newcomer);
            self.items.shrinkRetainingCapacity(@min(self.items.items.len, list_size));
        }
    }

    fn offer(self: *Plain, arena: std.mem.Allocator, id: u32, list_size: u32, stop: Stop) !void {
        try self.offer_many(arena, &.{id}, list_size, stop);
    }
};

/// Codes of rows, with centers of their own, as an index has them.
pub fn encoded(arena: std.mem.Allocator, params: quant.CodeParams, rows: []const f32, form: quant.Form) !quant.Codes {
    const dim = params.dim;
    const n: u32 = @intCast(rows.len / dim);
    const centers: quant.Centers = try .train(arena, dim, rows, quant.Centers.count_for(n));
    var encoder: quant.Encoder = try .init(arena, params);
    const bytes = try arena.alignedAlloc(u8, .@"64", quant.Codes.byte_len(params, n));
    @memset(bytes, 0);
    const factors = try arena.alloc(u32, n);
    const center_ids = try arena.alloc(u8, n);
    const code = try arena.alloc(u16, dim);
    const o = try arena.alloc(f32, dim);
    var tan2: f64 = 0;
    for (factors, center_ids, 0..) |*factor, *center_id, i| {
        const row = rows[i * dim ..][0..dim];
        center_id.* = centers.nearest(row);
        const center = centers.at(center_id.*);
        for (o, row, center) |*out, x, c| out.* = x - c;
        const measured = encoder.encode(o, code);
        tan2 += measured.tan2_upper;
        factor.* = encoder.store_factors(form, code, measured, center, centers.norms2[center_id.*]).memory;
        quant.pack(code, @intCast(params.record_bits), params.memory_bits, bytes[i * params.upper_bytes() ..][0..params.upper_bytes()]);
    }
    const tan: f32 = @floatCast(@sqrt(tan2 / @as(f64, @floatFromInt(n))));
    return .{ .params = params, .n = n, .bytes = bytes, .factors = factors, .center_ids = center_ids, .centers = centers.rows, .form = form, .norm2_per_f2 = 1, .tan_upper = tan, .tan_full = tan };
}
