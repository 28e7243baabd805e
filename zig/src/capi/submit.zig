//! Searches that no thread waits for: a ticket is submitted, reaped once it has ended, and may be canceled meanwhile.
const filter_room = @import("filter");
const index = @import("index");
const search = @import("search");
const call = @import("call.zig");
const common = @import("common.zig");
const Delta = call.Delta;
const handle_file = @import("handle.zig");
const handles = @import("handles.zig");
const Handle = handles.Handle;
const Index = handle_file.Index;
const report = common.report;
const ok = common.ok;

const Ticket = struct {
    job: search.Job,
    node: handle_file.Node,
    index: *Index,
    answers: search.Answers,
    delta: ?call.AskedOfDelta,

    /// A ticket with its own copy of queries and filters, for callers go on.
    fn create(number: u64, arguments: *const call.Arguments, out: *const call.SearchOut) common.Failure!*Ticket {
        const ticket = try common.allocator.create(Ticket);
        errdefer common.allocator.destroy(ticket);
        ticket.index = arguments.indexes[0];
        ticket.answers = call.answers_of(out);
        const segments = try common.allocator.alloc(search.JobSegment, arguments.segments.len);
        errdefer common.allocator.free(segments);
        ticket.job = try arguments.job_of(segments, &ticket.answers, on_done);
        ticket.node = .{ .number = number, .canceled = &ticket.job.canceled };
        ticket.job.queries = try common.allocator.dupe(u8, ticket.job.queries);
        errdefer common.allocator.free(ticket.job.queries);
        var copied: usize = 0;
        errdefer for (segments[0..copied]) |segment| common.allocator.free(segment.filters);
        for (segments) |*segment| {
            segment.filters = try common.allocator.dupe(?*const filter_room.Filter, segment.filters);
            copied += 1;
        }
        ticket.delta = null;
        if (arguments.delta) |given| {
            ticket.delta = @as(call.AskedOfDelta, undefined);
            try ticket.delta.?.init(given, &ticket.job, ticket.index.workers.threads);
            ticket.job.delta = &ticket.delta.?.of_job;
        }
        return ticket;
    }

    fn destroy(self: *Ticket) void {
        if (self.delta) |*delta| delta.deinit();
        for (self.job.segments) |segment| common.allocator.free(segment.filters);
        common.allocator.free(self.job.segments);
        common.allocator.free(self.job.queries);
        common.allocator.destroy(self);
    }

    fn on_done(job: *search.Job) void {
        const self: *Ticket = @fieldParentPtr("job", job);
        call.write_statuses(&self.answers, job.count);
        // After this the ticket belongs to the thread that reaps it.
        self.index.completed.push(&self.node);
    }
};

export fn velo_submit_segments(
    segments: ?[*]const call.Segment,
    segment_count: u32,
    delta: ?*const Delta,
    queries: ?*const anyopaque,
    dtype: i32,
    query_count: u64,
    filter_count: u64,
    options: ?*const call.SearchOptions,
    out: ?*const call.SearchOut,
    ticket_number: u64,
) i32 {
    var entered: call.Entered = undefined;
    entered.init(segments, segment_count) catch |err| return common.status_of_call(err);
    defer entered.leave();
    const arguments: call.Arguments = .{ .segments = entered.segments, .indexes = entered.indexes(), .delta = delta, .queries = queries, .dtype = dtype, .query_count = query_count, .filter_count = filter_count, .options = options };
    return common.status_of_call(submit(&arguments, out, ticket_number));
}

/// The queries from `first_query` on, each as a search of its own that is answered into its row of `out`. Their tickets
/// count up from `first_ticket`. Ends at the first that is refused; `submitted_out` has the number of those before it.
export fn velo_submit_each(
    segments: ?[*]const call.Segment,
    segment_count: u32,
    delta: ?*const Delta,
    queries: ?*const anyopaque,
    dtype: i32,
    query_count: u64,
    filter_count: u64,
    options: ?*const call.SearchOptions,
    out: ?*const call.SearchOut,
    first_query: u64,
    first_ticket: u64,
    submitted_out: ?*u64,
) i32 {
    var entered: call.Entered = undefined;
    entered.init(segments, segment_count) catch |err| return common.status_of_call(err);
    defer entered.leave();
    const arguments: call.Arguments = .{ .segments = entered.segments, .indexes = entered.indexes(), .delta = delta, .queries = queries, .dtype = dtype, .query_count = query_count, .filter_count = filter_count, .options = options };
    return common.status_of_call(submit_each(&arguments, out, first_query, first_ticket, submitted_out));
}

fn submit_each(arguments: *const call.Arguments, out: ?*const call.SearchOut, first_query: u64, first_ticket: u64, submitted_out: ?*u64) common.Failure!void {
    const submitted = try common.need("submitted_out", submitted_out);
    submitted.* = 0;
    const queries: [*]const u8 = @ptrCast(try common.need("queries", arguments.queries));
    const first = arguments.indexes[0];
    const dtype = try call.dtype_of(arguments.dtype);
    const options = try common.read(call.SearchOptions, "options", arguments.options);
    const answers = try common.read(call.SearchOut, "out", out);
    if (arguments.filter_count > 1) return report(.invalid_argument, .{ .argument = "filters" }, "queries that are submitted each have one filter for all, or none", .{});
    var query = first_query;
    while (query < arguments.query_count) : (query += 1) {
        var own = arguments.*;
        own.queries = queries + query * first.reader.header.dim_in * dtype.bytes();
        own.query_count = 1;
        try submit(&own, &answers.of_query(query, options.k), first_ticket + submitted.*);
        submitted.* += 1;
    }
}

fn submit(arguments: *const call.Arguments, out: ?*const call.SearchOut, number: u64) common.Failure!void {
    const self = arguments.indexes[0];
    const theirs = try common.need("out", out);
    if (arguments.query_count == 0) return report(.invalid_argument, .{ .argument = "queries" }, "a ticket needs at least one query", .{});
    const ticket = try Ticket.create(number, arguments, &try common.read(call.SearchOut, "out", theirs));
    errdefer ticket.destroy();
    if (!self.completed.reserve(&ticket.node)) return report(.busy, .{}, "{d} searches wait already", .{handle_file.waiting_max});
    errdefer self.completed.forget(&ticket.node);
    try self.submit(&ticket.job);
}

pub const Completion = extern struct { ticket: u64, status: i32, reserved: u32 = 0 };

export fn velo_reap(handle: Handle, completions_out: ?[*]Completion, capacity: u32, count_out: ?*u32) i32 {
    return common.status_of_call(reap(handle, completions_out, capacity, count_out));
}

fn reap(handle: Handle, completions_out: ?[*]Completion, capacity: u32, count_out: ?*u32) common.Failure!void {
    const self = try handles.enter(Index, "index", handle);
    defer handles.leave(handle);
    const out = try common.need("completions_out", completions_out);
    const count = try common.need("count_out", count_out);
    count.* = 0;
    while (count.* < capacity) {
        const node = self.completed.pop() orelse break;
        const ticket: *Ticket = @fieldParentPtr("node", node);
        out[count.*] = .{ .ticket = node.number, .status = call.status_of_job(&ticket.job) };
        count.* += 1;
        ticket.destroy();
    }
}

export fn velo_cancel(handle: Handle, ticket: u64) i32 {
    const self = handles.enter(Index, "index", handle) catch |err| return common.status_of_call(err);
    defer handles.leave(handle);
    self.completed.cancel(ticket);
    return ok;
}

export fn velo_event_fd(handle: Handle, fd_out: ?*i32) i32 {
    return common.status_of_call(event_fd(handle, fd_out));
}

fn event_fd(handle: Handle, fd_out: ?*i32) common.Failure!void {
    const self = try handles.enter(Index, "index", handle);
    defer handles.leave(handle);
    const out = try common.need("fd_out", fd_out);
    out.* = self.completed.event() catch |err| return switch (err) {
        error.SystemResources => error.OutOfMemory,
        else => report(.io, .{}, "the system gave no eventfd: {s}", .{index.diagnostic.reason(err)}),
    };
}
