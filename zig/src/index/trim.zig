//! Fewer links in memory than links.bin holds: of each list the nearest to its vertex stay, because pruning takes
//! neighbors nearest first, so that these are the first it took.
const std = @import("std");
const layout = @import("layout");
const quant = @import("quant");
const base = @import("base");
const Links = layout.links.Links;
const adjacency = layout.adjacency;

/// Below this many links a vertex navigation in memory loses its way; the plan goes to links on disk instead.
pub const kept_min = 6;
const sample_max = 4096;
/// So many lists are read before what they took is released: about a megabyte.
const release_vertices = 1024 * layout.links.group_size;

pub const Trimmed = struct { links: Links, memory: base.AlignedBytes, kept: u32 };

pub const Error = error{ OutOfMemory, BadList, NoRoom };

/// Bytes that `kept` links a vertex would take, a little more than less.
pub fn estimate_bytes(links: *const Links, built: u32, kept: u32) u64 {
    const overhead = links.groups.len * 8 + links.lengths.len;
    // Fewer links lie farther apart: a gap grows by the factor that the count shrinks, about a bit a halving.
    const share = @as(f64, @floatFromInt(kept)) / @as(f64, @floatFromInt(@max(1, built)));
    const per_link = 1 + @max(0, -@log2(@max(share, 1e-3))) / 12;
    return overhead + @as(u64, @intFromFloat(@as(f64, @floatFromInt(links.heap.len)) * share * per_link * 1.02)) + 64;
}

/// Called with parts of `links.heap` that have been read and are not needed soon, if ever.
pub const Release = *const fn (part: []const u8) void;

/// Keeps at most `wanted` links a vertex, and at most what `room` bytes hold. Consumes nothing: `links` stays valid.
pub fn trim(
    allocator: std.mem.Allocator,
    codes: *const quant.Codes,
    links: *const Links,
    wanted: u32,
    built: u32,
    room: ?u64,
    threads: u32,
    release: Release,
) Error!Trimmed {
    var kept = wanted;
    if (room) |bytes| {
        while (kept > kept_min and estimate_bytes(links, built, kept) > bytes) kept -= 1;
    }
    while (true) {
        if (room) |bytes| if (kept < kept_min and links.heap.len > bytes) return error.NoRoom;
        var trimmed = try trim_to(allocator, codes, links, kept, threads, release);
        if (room == null or trimmed.memory.bytes.len <= room.?) return trimmed;
        trimmed.memory.free();
        if (kept <= kept_min) return error.NoRoom;
        kept -= 1;
    }
}

fn trim_to(
    allocator: std.mem.Allocator,
    codes: *const quant.Codes,
    links: *const Links,
    kept: u32,
    threads: u32,
    release: Release,
) Error!Trimmed {
    var nearest = try Nearest.init(allocator, codes);
    defer nearest.deinit();

    // The gaps of shorter lists are other gaps: train their code on a sample.
    var statistics: adjacency.Codec.Statistics = .{};
    const stride = @max(1, links.n / sample_max);
    var vertex: u32 = 0;
    while (vertex < links.n) : (vertex += stride) {
        var buffer: [adjacency.neighbors_max]u32 = undefined;
        statistics.count(vertex, try nearest.of(links, vertex, kept, &buffer));
    }
    const codec = adjacency.Codec.train(&statistics);
    release(links.heap);

    // Each thread encodes a run of groups into its own heap; then the heaps are laid end to end.
    const groups = layout.links.group_count(links.n);
    const thread_count = @max(1, @min(threads, groups / 1024 + 1));
    const parts = try allocator.alloc(Part, thread_count);
    defer allocator.free(parts);
    var started: usize = 0;
    defer for (parts[0..started]) |*part| part.deinit();
    const lengths = try allocator.alloc(u8, @as(usize, groups) * layout.links.group_size);
    defer allocator.free(lengths);
    @memset(lengths, 0);
    for (parts, 0..) |*part, i| {
        part.* = .{
            .codes = codes,
            .links = links,
            .codec = &codec,
            .kept = kept,
            .release = release,
            .lengths = lengths,
            .begin = @intCast(@as(u64, groups) * i / thread_count * layout.links.group_size),
            .end = @min(links.n, @as(u32, @intCast(@as(u64, groups) * (i + 1) / thread_count * layout.links.group_size))),
            .nearest = try Nearest.init(allocator, codes),
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
        @memcpy(heap[at..][0..part.heap.items.len], part.heap.items);
        at += part.heap.items.len;
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
    codes: *const quant.Codes,
    links: *const Links,
    codec: *const adjacency.Codec,
    kept: u32,
    release: Release,
    lengths: []u8,
    begin: u32,
    end: u32,
    nearest: Nearest,
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
        var behind = self.links.groups[self.begin / layout.links.group_size];
        while (vertex < self.end) : (vertex += 1) {
            if (vertex % release_vertices == 0 and vertex > self.begin) {
                const here = self.links.groups[vertex / layout.links.group_size];
                self.release(self.links.heap[@intCast(behind)..@intCast(here)]);
                behind = here;
            }
            var ids = try self.nearest.of(self.links, vertex, self.kept, &buffer);
            while (self.codec.encoded_bytes(vertex, ids) > layout.links.list_bytes_max) ids = ids[0 .. ids.len - 1];
            const out = try self.heap.addManyAsSlice(std.heap.page_allocator, self.codec.encoded_bytes(vertex, ids));
            self.lengths[vertex] = @intCast(self.codec.encode(vertex, ids, out));
        }
    }

    fn deinit(self: *Part) void {
        self.nearest.deinit();
        self.heap.deinit(std.heap.page_allocator);
    }
};

/// Chooses the nearest of a vertex's links by the codes in memory.
const Nearest = struct {
    allocator: std.mem.Allocator,
    codes: *const quant.Codes,
    query: quant.Query,
    unpacked: []u16,
    point: []f32,

    fn init(allocator: std.mem.Allocator, codes: *const quant.Codes) error{OutOfMemory}!Nearest {
        var query = try quant.Query.init(allocator, codes.params);
        errdefer query.deinit(allocator);
        const unpacked = try allocator.alloc(u16, codes.params.dim);
        errdefer allocator.free(unpacked);
        return .{ .allocator = allocator, .codes = codes, .query = query, .unpacked = unpacked, .point = try allocator.alloc(f32, codes.params.dim) };
    }

    fn deinit(self: *Nearest) void {
        self.query.deinit(self.allocator);
        self.allocator.free(self.unpacked);
        self.allocator.free(self.point);
    }

    /// Up to `kept` links of `vertex`, ascending.
    fn of(self: *Nearest, links: *const Links, vertex: u32, kept: u32, buffer: *[adjacency.neighbors_max]u32) error{BadList}![]u32 {
        const ids = links.decode(vertex, buffer) catch return error.BadList;
        if (ids.len <= kept) return ids;
        const params = self.codes.params;
        const entry = self.codes.bytes[@as(usize, vertex) * params.entry_bytes() ..][0..params.entry_bytes()];
        quant.unpack(entry[0..params.upper_bytes()], params.memory_bits, self.unpacked);
        const middle = @as(f32, @floatFromInt(@as(u32, 1) << @intCast(params.memory_bits - 1))) - 0.5;
        var square: f32 = 0;
        for (self.point, self.unpacked) |*value, code| {
            value.* = @as(f32, @floatFromInt(code)) - middle;
            square += value.* * value.*;
        }
        const norm2 = self.codes.norm2.decode(std.mem.readInt(u16, entry[params.upper_bytes()..][0..2], .little));
        const scale = @sqrt(@max(0, norm2) / @max(square, 1e-30));
        for (self.point) |*value| value.* *= scale;
        self.query.prepare(self.point);
        var distances: [adjacency.neighbors_max]f32 = undefined;
        self.query.estimate(self.codes, ids, distances[0..ids.len]);
        // Selection of a few out of a few: insertion into a sorted prefix.
        for (1..ids.len) |i| {
            const id = ids[i];
            const distance = distances[i];
            var j = i;
            while (j > 0 and distances[j - 1] > distance) : (j -= 1) {
                distances[j] = distances[j - 1];
                ids[j] = ids[j - 1];
            }
            distances[j] = distance;
            ids[j] = id;
        }
        std.mem.sortUnstable(u32, ids[0..kept], {}, std.sort.asc(u32));
        return ids[0..kept];
    }
};
