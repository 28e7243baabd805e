//! Fewer links in memory than links.bin holds: of each list those stay that pruning put first, by their tiers. (The
//! nearest are not the first: pruning puts those first that serve navigation over few links.)
const std = @import("std");
const layout = @import("layout");
const base = @import("base");
const Links = layout.links.Links;
const adjacency = layout.adjacency;

/// Below this many links a vertex navigation in memory loses its way; the plan goes to links on disk instead.
pub const kept_min = layout.links.tier_bounds[0];
const sample_max = 4096;
/// So many lists are passed before what they took is released: about a megabyte.
const release_vertices = 1024 * layout.links.group_size;
const release_bytes = 1 << 20;

pub const Trimmed = struct { links: Links, memory: base.AlignedBytes, kept: u32 };

pub const Error = error{ OutOfMemory, BadList, NoRoom };

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

/// What of the links `room` bytes hold, by estimate; null where too few for navigation do.
pub fn choose(header: *const layout.headers.Links, room: ?u64) ?Choice {
    const built = header.links_built;
    if (built == 0) return null;
    if (room == null or header.resident_bytes() <= room.?) return .{ .kept = built, .bytes = header.resident_bytes() };
    var kept = step_down(built, built);
    while (kept) |links| : (kept = step_down(built, links)) {
        const bytes = estimate_of(header.resident_bytes() - header.heap_bytes, header.heap_bytes, built, links);
        if (bytes <= room.?) return .{ .kept = links, .bytes = bytes };
    }
    return null;
}

/// Called with parts of memory that have been read and are not needed soon, if ever.
pub const Release = *const fn (part: []const u8) void;

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
) Error!Trimmed {
    needed.* = estimate_bytes(links, built, kept_min);
    // One of the tiers' numbers, or all that were built.
    var kept = step_down(built, @max(wanted, kept_min) + 1) orelse return error.NoRoom;
    if (room) |bytes| {
        while (estimate_bytes(links, built, kept) > bytes) kept = step_down(built, kept) orelse break;
    }
    while (true) {
        var trimmed = try trim_to(allocator, links, tiers, built, kept, threads, release);
        if (room == null or trimmed.memory.bytes.len <= room.?) return trimmed;
        needed.* = trimmed.memory.bytes.len;
        trimmed.memory.free();
        kept = step_down(built, kept) orelse return error.NoRoom;
    }
}

/// The next smaller number of links that can be kept; null below the first tier.
fn step_down(built: u32, kept: u32) ?u32 {
    if (built < kept) return built;
    var best: ?u32 = null;
    for (layout.links.tier_bounds) |bound| {
        if (bound < kept) best = bound;
    }
    return best;
}

fn trim_to(
    allocator: std.mem.Allocator,
    links: *const Links,
    tiers: []const u8,
    built: u32,
    kept: u32,
    threads: u32,
    release: Release,
) Error!Trimmed {
    const first: First = .{ .tiers = tiers, .stride = layout.links.tier_bytes(built), .within = if (kept >= built) 8 else layout.links.tiers_within(kept) };
    // The gaps of shorter lists are other gaps: train their code on a sample.
    var statistics: adjacency.Codec.Statistics = .{};
    const stride = @max(1, links.n / sample_max);
    var passed: Passed = .{ .links = links, .first = first, .release = release };
    var vertex: u32 = 0;
    while (vertex < links.n) : (vertex += stride) {
        passed.at(vertex); // around what is read of a mapped file the system brings more
        var buffer: [adjacency.neighbors_max]u32 = undefined;
        statistics.count(vertex, try first.of(links, vertex, &buffer));
    }
    const codec = adjacency.Codec.train(&statistics);
    passed.up_to(links.n);

    // Each thread encodes a run of groups into its own heap; then the heaps are laid end to end.
    const groups = layout.links.group_count(links.n);
    const thread_count = @max(1, @min(threads, groups / 1024 + 1));
    const parts = try allocator.alloc(Part, thread_count);
    defer allocator.free(parts);
    var started: usize = 0;
    defer for (parts[0..started]) |*part| part.deinit();
    const lengths = try base.alloc_untouched(allocator, u8, @as(usize, groups) * layout.links.group_size);
    defer base.free_untouched(allocator, lengths);
    @memset(lengths, 0);
    for (parts, 0..) |*part, i| {
        part.* = .{
            .links = links,
            .codec = &codec,
            .first = first,
            .release = release,
            .lengths = lengths,
            .begin = @intCast(@as(u64, groups) * i / thread_count * layout.links.group_size),
            .end = @min(links.n, @as(u32, @intCast(@as(u64, groups) * (i + 1) / thread_count * layout.links.group_size))),
        };
        started += 1;
    }
    for (parts[1..]) |*part| part.thread = std.Thread.spawn(.{}, Part.run, .{part}) catch null;
    parts[0].run();
    for (parts[1..]) |*part| if (part.thread) |thread| thread.join() else part.run();
    var heap_bytes: u64 = adjacency.over_read_bytes;
    for (parts) |*part| {
        if (part.failure) |failure| return failure;
        heap_bytes += part.heap.items.len;
    }

    const group_bytes = (@as(usize, groups) + 1) * 8;
    const mapped = try base.AlignedBytes.alloc(@intCast(group_bytes + lengths.len + heap_bytes), .{ .huge_pages = true });
    const memory = mapped.bytes;
    const out_groups: []u64 = @alignCast(std.mem.bytesAsSlice(u64, memory[0..group_bytes]));
    const out_lengths = memory[group_bytes..][0..lengths.len];
    @memcpy(out_lengths, lengths);
    const heap = memory[group_bytes + lengths.len ..];
    var at: usize = 0;
    for (parts) |*part| {
        var rest = part.heap.items;
        while (rest.len > 0) {
            const piece = rest[0..@min(rest.len, release_bytes)];
            @memcpy(heap[at..][0..piece.len], piece);
            release(piece);
            at += piece.len;
            rest = rest[piece.len..];
        }
        part.heap.clearAndFree(std.heap.page_allocator);
    }
    var begin: u64 = 0;
    for (out_groups[0..groups], 0..) |*group, i| {
        group.* = begin;
        for (lengths[i * layout.links.group_size ..][0..layout.links.group_size]) |length| begin += length;
    }
    out_groups[groups] = begin;
    return .{
        .kept = kept,
        .memory = mapped,
        .links = .{ .n = links.n, .codec = codec, .groups = out_groups, .lengths = out_lengths, .heap = heap },
    };
}

const Part = struct {
    links: *const Links,
    codec: *const adjacency.Codec,
    first: First,
    release: Release,
    lengths: []u8,
    begin: u32,
    end: u32,
    heap: std.ArrayList(u8) = .empty,
    failure: ?Error = null,
    thread: ?std.Thread = null,

    fn run(self: *Part) void {
        self.encode() catch |err| {
            self.failure = err;
        };
    }

    fn encode(self: *Part) Error!void {
        var buffer: [adjacency.neighbors_max]u32 = undefined;
        var vertex = self.begin;
        var passed: Passed = .{ .links = self.links, .first = self.first, .release = self.release, .begin = self.begin };
        while (vertex < self.end) : (vertex += 1) {
            passed.at(vertex);
            var ids = try self.first.of(self.links, vertex, &buffer);
            while (self.codec.encoded_bytes(vertex, ids) > layout.links.list_bytes_max) ids = ids[0 .. ids.len - 1];
            const out = try self.heap.addManyAsSlice(std.heap.page_allocator, self.codec.encoded_bytes(vertex, ids));
            self.lengths[vertex] = @intCast(self.codec.encode(vertex, ids, out));
        }
    }

    fn deinit(self: *Part) void {
        self.heap.deinit(std.heap.page_allocator);
    }
};

/// Releases lists and tiers that have been read.
const Passed = struct {
    links: *const Links,
    first: First,
    release: Release,
    /// Vertices before this one are released; the first of a group.
    begin: u32 = 0,

    fn at(self: *Passed, vertex: u32) void {
        if (vertex - self.begin >= release_vertices) self.up_to(vertex / layout.links.group_size * layout.links.group_size);
    }

    fn up_to(self: *Passed, end: u32) void {
        const groups = self.links.groups;
        const heap_begin = groups[self.begin / layout.links.group_size];
        const heap_end = groups[std.math.divCeil(u32, end, layout.links.group_size) catch unreachable];
        self.release(self.links.heap[@intCast(heap_begin)..@intCast(heap_end)]);
        self.release(self.first.tiers[@as(usize, self.begin) * self.first.stride .. @as(usize, end) * self.first.stride]);
        self.begin = end;
    }
};

/// Chooses the links of the lower tiers.
const First = struct {
    tiers: []const u8,
    /// Bytes of tiers a vertex.
    stride: u32,
    /// Tiers below this stay.
    within: u4,

    /// The links of `vertex` that stay, ascending.
    fn of(self: First, links: *const Links, vertex: u32, buffer: *[adjacency.neighbors_max]u32) error{BadList}![]u32 {
        const ids = links.decode(vertex, buffer) catch return error.BadList;
        const tiers = self.tiers[@as(usize, vertex) * self.stride ..][0..self.stride];
        if (layout.links.tier_bytes(@intCast(ids.len)) > tiers.len) return error.BadList;
        var count: usize = 0;
        for (ids, 0..) |id, link| {
            if (layout.links.get_tier(tiers, link) >= self.within) continue;
            ids[count] = id;
            count += 1;
        }
        return ids[0..count];
    }
};
