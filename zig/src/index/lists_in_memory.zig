//! Lists of links for memory, made of those of links.bin as an index is opened: shorter ones, or ones that
//! vertices share (block_adjacency.zig). Those say which links a list has; here several threads encode them, each a run of lists
//! into a heap of its own, and the heaps are laid end to end.
//!
//! A chooser is `Chooser.init(allocator, source)`, one a thread. Of its source, `first(list)` is the vertex that the gaps of a
//! list begin at, and the first whose links it takes. `of(list, most)` are its links, ascending, at most so many; where they
//! take too many bytes, `given_up` fewer are asked for.
const std = @import("std");
const layout = @import("layout");
const base = @import("base");
const Links = layout.links.Links;
const adjacency = layout.adjacency;

const sample_max = 4096;
/// So many vertices are passed before what their lists took is released: about a megabyte.
const release_vertices = 1024 * layout.links.group_size;
const release_bytes = 1 << 20;

pub const Error = error{ OutOfMemory, BadList };

/// Called with parts of memory that have been read and are not needed soon, if ever.
const Release = *const fn (part: []const u8) void;

const Made = struct { links: Links, memory: base.AlignedBytes };

/// The links of vertices as built, and the tiers of links.bin.
pub const Built = struct {
    links: *const Links,
    tiers: []const u8,
    /// Links of a vertex at most.
    most: u32,
    release: Release,

    /// The tiers of a vertex that has these links.
    pub fn tiers_of(self: *const Built, vertex: u32, ids: []const u32) error{BadList}![]const u8 {
        const stride = layout.links.tier_bytes(self.most);
        const tiers = self.tiers[@as(usize, vertex) * stride ..][0..stride];
        if (ids.len > self.most or layout.links.tier_bytes(@intCast(ids.len)) > tiers.len) return error.BadList;
        return tiers;
    }

    pub fn decode(self: *const Built, vertex: u32, buffer: *[adjacency.neighbors_max]u32) error{BadList}![]u32 {
        return self.links.decode(vertex, buffer) catch error.BadList;
    }
};

/// Consumes nothing: the links as built stay valid.
pub fn make(comptime Chooser: type, allocator: std.mem.Allocator, source: *const Chooser.Source, list_count: u32, threads: u32) Error!Made {
    const built = &source.built;
    const codec = try trained(Chooser, allocator, source, list_count);

    const groups = layout.links.group_count(list_count);
    const thread_count = @max(1, @min(threads, groups / 1024 + 1));
    const runs = try allocator.alloc(Run(Chooser), thread_count);
    defer allocator.free(runs);
    var started: usize = 0;
    defer for (runs[0..started]) |*run| run.heap.deinit(std.heap.page_allocator);
    const lengths = try base.alloc_untouched(allocator, u8, @as(usize, groups) * layout.links.group_size);
    defer base.free_untouched(allocator, lengths);
    @memset(lengths, 0);
    for (runs, 0..) |*run, i| {
        run.* = .{
            .source = source,
            .codec = &codec,
            .lengths = lengths,
            .begin = @intCast(@as(u64, groups) * i / thread_count * layout.links.group_size),
            .end = @min(list_count, @as(u32, @intCast(@as(u64, groups) * (i + 1) / thread_count * layout.links.group_size))),
        };
        started += 1;
    }
    for (runs[1..]) |*run| run.thread = std.Thread.spawn(.{}, Run(Chooser).encode, .{run}) catch null;
    runs[0].encode();
    for (runs[1..]) |*run| if (run.thread) |thread| thread.join() else run.encode();
    var heap_bytes: u64 = adjacency.over_read_bytes;
    for (runs) |*run| {
        if (run.failure) |failure| return failure;
        heap_bytes += run.heap.items.len;
    }

    const group_bytes = (@as(usize, groups) + 1) * 8;
    const memory = try base.AlignedBytes.alloc(@intCast(group_bytes + lengths.len + heap_bytes), .{ .huge_pages = true });
    const out_groups: []u64 = @alignCast(std.mem.bytesAsSlice(u64, memory.bytes[0..group_bytes]));
    const out_lengths = memory.bytes[group_bytes..][0..lengths.len];
    @memcpy(out_lengths, lengths);
    const heap = memory.bytes[group_bytes + lengths.len ..];
    var at: usize = 0;
    for (runs) |*run| {
        var rest = run.heap.items;
        while (rest.len > 0) {
            const piece = rest[0..@min(rest.len, release_bytes)];
            @memcpy(heap[at..][0..piece.len], piece);
            built.release(piece);
            at += piece.len;
            rest = rest[piece.len..];
        }
        run.heap.clearAndFree(std.heap.page_allocator);
    }
    var begin: u64 = 0;
    for (out_groups[0..groups], 0..) |*group, i| {
        group.* = begin;
        for (lengths[i * layout.links.group_size ..][0..layout.links.group_size]) |length| begin += length;
    }
    out_groups[groups] = begin;
    return .{ .memory = memory, .links = .{ .n = list_count, .codec = codec, .groups = out_groups, .lengths = out_lengths, .heap = heap } };
}

/// The gaps of other lists are other gaps: their code is trained on a sample.
fn trained(comptime Chooser: type, allocator: std.mem.Allocator, source: *const Chooser.Source, list_count: u32) Error!adjacency.Codec {
    var chooser = try Chooser.init(allocator, source);
    defer chooser.deinit(allocator);
    var statistics: adjacency.Codec.Statistics = .{};
    var passed: Passed = .{ .built = &source.built };
    const stride = @max(1, list_count / sample_max);
    var list: u32 = 0;
    while (list < list_count) : (list += stride) {
        passed.at(source.first(list)); // around what is read of a mapped file the system brings more
        statistics.count(source.first(list), try chooser.of(list, adjacency.neighbors_max));
    }
    passed.up_to(source.built.links.n);
    return adjacency.Codec.train(&statistics);
}

/// The lists that one thread encodes.
fn Run(comptime Chooser: type) type {
    return struct {
        source: *const Chooser.Source,
        codec: *const adjacency.Codec,
        lengths: []u8,
        begin: u32,
        end: u32,
        heap: std.ArrayList(u8) = .empty,
        failure: ?Error = null,
        thread: ?std.Thread = null,

        const Self = @This();

        fn encode(self: *Self) void {
            self.encode_lists() catch |err| {
                self.failure = err;
            };
        }

        fn encode_lists(self: *Self) Error!void {
            var chooser = try Chooser.init(std.heap.page_allocator, self.source);
            defer chooser.deinit(std.heap.page_allocator);
            const begin = self.source.first(self.begin) / layout.links.group_size * layout.links.group_size;
            var passed: Passed = .{ .built = &self.source.built, .begin = begin };
            for (self.begin..self.end) |number| {
                const list: u32 = @intCast(number);
                const first = self.source.first(list);
                passed.at(first);
                var ids = try chooser.of(list, adjacency.neighbors_max);
                while (self.codec.encoded_bytes(first, ids) > layout.links.list_bytes_max) ids = try chooser.of(list, @intCast(ids.len -| Chooser.given_up));
                const out = try self.heap.addManyAsSlice(std.heap.page_allocator, self.codec.encoded_bytes(first, ids));
                self.lengths[list] = @intCast(self.codec.encode(first, ids, out));
            }
        }
    };
}

/// Releases lists and tiers that have been read.
const Passed = struct {
    built: *const Built,
    /// Vertices before this one are released; the first of a group.
    begin: u32 = 0,

    fn at(self: *Passed, vertex: u32) void {
        if (vertex - self.begin >= release_vertices) self.up_to(vertex / layout.links.group_size * layout.links.group_size);
    }

    fn up_to(self: *Passed, end: u32) void {
        const links = self.built.links;
        const heap_begin = links.groups[self.begin / layout.links.group_size];
        const heap_end = links.groups[std.math.divCeil(u32, end, layout.links.group_size) catch unreachable];
        self.built.release(links.heap[@intCast(heap_begin)..@intCast(heap_end)]);
        const stride = layout.links.tier_bytes(self.built.most);
        self.built.release(self.built.tiers[@as(usize, self.begin) * stride .. @as(usize, end) * stride]);
        self.begin = end;
    }
};

// ---- fewer links than were built ----
//
// Fewer links in memory than links.bin holds: of each list those stay that pruning put first, by their tiers. (The
// nearest are not the first: pruning puts those first that serve navigation over few links.)

/// Below this many links a vertex navigation in memory loses its way; the plan goes to links on disk instead.
pub const kept_min = layout.links.tier_bounds[0];

/// As many links a vertex as a budget is spent on. More reach a recall with no fewer estimates (on a million descriptors, with
/// and without filters; on text of 384 dimensions), and the pages that fit in their place save reads
/// (docs/decisions/0022).
pub const kept_enough = 16;

const Trimmed = struct { links: Links, memory: base.AlignedBytes, kept: u32 };

const TrimError = Error || error{NoRoom};

/// Bytes that `kept` links a vertex would take, a little more than less.
pub fn estimate_bytes(links: *const Links, built: u32, kept: u32) u64 {
    return estimate_of(links.groups.len * 8 + links.lengths.len, links.heap.len, built, kept);
}

/// The same from what finding a list takes, and from the bytes of all lists as built.
pub fn estimate_of(overhead: u64, heap_bytes: u64, built: u32, kept: u32) u64 {
    // Fewer links lie farther apart: a gap grows by the factor that the count shrinks, about a bit a halving.
    const share = @as(f64, @floatFromInt(kept)) / @as(f64, @floatFromInt(@max(1, built)));
    const per_link = 1 + @max(0, -@log2(@max(share, 1e-3))) / 12;
    return overhead + @as(u64, @intFromFloat(@as(f64, @floatFromInt(heap_bytes)) * share * per_link * 1.02)) + 64;
}

pub const Choice = struct { kept: u32, bytes: u64 };

/// The links that fit into `room` bytes, by estimate; null where too few for navigation do.
pub fn choose(header: *const layout.headers.Links, room: ?u64) ?Choice {
    const built = header.links_built;
    if (built == 0) return null;
    const most = if (room == null) built else @min(built, kept_enough);
    if (most == built and (room == null or header.resident_bytes() <= room.?)) return .{ .kept = built, .bytes = header.resident_bytes() };
    var kept = step_down(built, @min(built, most + 1));
    while (kept) |links| : (kept = step_down(built, links)) {
        const bytes = estimate_of(header.resident_bytes() - header.heap_bytes, header.heap_bytes, built, links);
        if (bytes <= room.?) return .{ .kept = links, .bytes = bytes };
    }
    return null;
}

/// Keeps at most `wanted` links a vertex, and at most what `room` bytes hold; where that is too little, `needed` says what
/// would do. Consumes nothing: `links` stays valid.
pub fn trim(
    allocator: std.mem.Allocator,
    links: *const Links,
    tiers: []const u8,
    wanted: u32,
    built: u32,
    room: ?u64,
    threads: u32,
    release: Release,
    needed: *u64,
) TrimError!Trimmed {
    needed.* = estimate_bytes(links, built, kept_min);
    // One of the tiers' numbers, or all that were built.
    var kept = step_down(built, @max(wanted, kept_min) + 1) orelse return error.NoRoom;
    if (room) |bytes| {
        while (estimate_bytes(links, built, kept) > bytes) kept = step_down(built, kept) orelse break;
    }
    while (true) {
        var trimmed = try trim_to(allocator, .{ .links = links, .tiers = tiers, .most = built, .release = release }, kept, threads);
        if (room == null or trimmed.memory.bytes.len <= room.?) return trimmed;
        needed.* = trimmed.memory.bytes.len;
        trimmed.memory.free();
        kept = step_down(built, kept) orelse return error.NoRoom;
    }
}

/// The next smaller number of links that can be kept; null below the first tier.
pub fn step_down(built: u32, kept: u32) ?u32 {
    if (built < kept) return built;
    var best: ?u32 = null;
    for (layout.links.tier_bounds) |bound| {
        if (bound < kept) best = bound;
    }
    return best;
}

fn trim_to(allocator: std.mem.Allocator, built: Built, kept: u32, threads: u32) Error!Trimmed {
    const source: Lower.Source = .{ .built = built, .within = if (kept >= built.most) 8 else layout.links.tiers_within(kept) };
    const made = try make(Lower, allocator, &source, built.links.n, threads);
    return .{ .kept = kept, .memory = made.memory, .links = made.links };
}

/// Chooses the links of the lower tiers; a list is that of a vertex.
const Lower = struct {
    source: *const Source,
    buffer: [adjacency.neighbors_max]u32 = undefined,

    pub const Source = struct {
        built: Built,
        /// Tiers below this stay.
        within: u4,

        pub fn first(_: *const Source, list: u32) u32 {
            return list;
        }
    };

    pub const given_up = 1;

    pub fn init(_: std.mem.Allocator, source: *const Source) error{OutOfMemory}!Lower {
        return .{ .source = source };
    }
    pub fn deinit(_: *Lower, _: std.mem.Allocator) void {}

    pub fn of(self: *Lower, vertex: u32, most: u32) error{BadList}![]const u32 {
        const ids = try self.source.built.decode(vertex, &self.buffer);
        const tiers = try self.source.built.tiers_of(vertex, ids);
        var count: usize = 0;
        for (ids, 0..) |id, link| {
            if (layout.links.get_tier(tiers, link) >= self.source.within) continue;
            ids[count] = id;
            count += 1;
        }
        return ids[0..@min(count, most)];
    }
};
